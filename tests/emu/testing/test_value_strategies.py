"""The Hypothesis strategies: what they draw, and what it shrinks to."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from roundscope import emu
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.testing import strategies
from roundscope.emu.testing.given import carrier_named
from roundscope.emu.testing.probes import CLASSES, classes_of

quick = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
BF16 = format_named("bf16")


def simplest(strategy: st.SearchStrategy[Any], condition: Callable[[Any], Any]) -> Any:
    return find(strategy, condition, settings=settings(quick, max_examples=400))


def drawn(strategy: st.SearchStrategy[Any], count: int = 200) -> list[Any]:
    """Return the examples that Hypothesis draws from a strategy."""
    found: list[Any] = []

    @settings(quick, max_examples=count)
    @given(strategy)
    def take(x: Any) -> None:
        found.append(x)

    take()
    return found


# ------------------------------------------------------------------------------------ shrinking


@pytest.mark.parametrize(
    ("name", "condition", "simple"),
    [
        ("bf16", lambda x: emu.explain(x, "bf16").tie, {1.00390625}),
        ("bf16", lambda x: x > 1 and judge(x, emu.BF16) > x, {1.01171875, 1.0039063692092896}),
        ("bf16", lambda x: emu.explain(x, "bf16").up and x > 0, {1.01171875, 1.0039063692092896}),
        (
            "bf16",
            lambda x: 0 < x < 2.0**-126,
            {2.0**-133, 2.0**-134, math.ldexp(1 - 2.0**-23, -126)},
        ),
        ("e4m3fn", lambda x: x > 448, {448 + 2.0**-15, 464.0, 512.0}),
        ("e4m3fn", lambda x: x < 0, {-1.0}),
        ("e2m1fn", lambda x: x == 0 and math.copysign(1, x) < 0, {0.0}),
        ("fp16", lambda x: x not in (0, 1), {-1.0, 1.0009765625}),
    ],
)
def test_values_shrink_to_short_numbers(name: str, condition: Any, simple: set[float]) -> None:
    """A failure that Hypothesis reports with a number of twenty digits and exponent -38."""
    assert simplest(strategies.values(name), condition) in simple


def test_arrays_and_blocks_shrink() -> None:
    """An array of three axes of random numbers, where one number is enough."""
    x = simplest(strategies.arrays("bf16"), lambda x: (np.abs(x) >= 1).any())
    assert x.shape == (1,) and x.tolist() == [1.0]
    x = simplest(strategies.blocks("mxfp4"), lambda x: np.abs(x).max() > 6)
    assert (x != 0).sum() == 1 and x.max() in (8.0, np.nextafter(np.float32(6), np.float32(7)))
    f = simplest(strategies.block_formats(), lambda f: f.rule == "even")
    assert str(f) == "e4m3fn:saturate[32]*e8m0fnu:even"


def test_formats_and_roundings_shrink() -> None:
    """A failure in all formats that is reported for e7m13."""
    assert simplest(strategies.formats(), lambda f: True).name == "bf16"
    assert simplest(strategies.formats(), lambda f: f.precision == 5).name.endswith("m4")
    r = simplest(strategies.roundings(), lambda r: r.mode is RoundingMode.STOCHASTIC)
    assert (r.format.name, r.overflow, r.seed) == ("bf16", "inf", 0)
    assert simplest(strategies.bit_patterns("e4m3fn"), lambda c: c & 0x7F == 0x7F) == 0x7F


# --------------------------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("carrier", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3fn", "e8m0fnu", "fp32", "e2m1", None])
def test_values_are_numbers_of_the_carrier(name: str | None, carrier: str) -> None:
    """A number that the carrier rounds, so that what is tested is not what was drawn."""
    dtype = carrier_named(carrier)
    for x in drawn(strategies.values(name, carrier), 30):
        assert math.isfinite(x)
        assert float(np.array(x).astype(dtype)) == x


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "fp16"])
def test_values_of_every_class_are_common(name: str) -> None:
    """A strategy that misses ties, their neighbors or subnormal numbers in 400 examples."""
    x = np.array(drawn(strategies.values(name, nan=True, infinities=True), 400), np.float32)
    counts = np.bincount(classes_of(x, format_named(name)), minlength=len(CLASSES))
    found = dict(zip(CLASSES, counts.tolist(), strict=True))
    for kind in ("NaN", "infinities", "zeros"):
        assert found[kind] >= 2, (kind, found)
    for kind in ("subnormals", "numbers", "ties", "beside ties", "beside numbers"):
        assert found[kind] >= 10, (kind, found)
    assert found["overflow"] >= 2 or name == "bf16"
    assert {math.copysign(1, v) for v in x if v == 0} == {1.0, -1.0}
    assert (np.signbit(x).sum() > 50) and (~np.signbit(x)).sum() > 50


def test_specials_are_drawn_on_request_alone() -> None:
    """A NaN in a test that did not ask for it."""
    x = np.array(drawn(strategies.values("bf16"), 300))
    assert np.isfinite(x).all()
    assert np.isnan(drawn(strategies.values("bf16", nan=True), 100)).any()
    assert np.isinf(drawn(strategies.arrays("bf16", shape=8, infinities=True), 50)).any()


@quick
@given(strategies.roundings())
def test_roundings_are_valid_and_round(r: Rounding) -> None:
    """A policy that the format lacks, or a seed outside the stochastic mode."""
    assert isinstance(r, Rounding) and r.format.bits <= 64
    assert r.mode is RoundingMode.STOCHASTIC or r.seed == 0
    assert emu.round_to(1.5, r).shape == ()


@quick
@given(strategies.formats(carrier="float32", max_bits=8))
def test_formats_fit_what_they_are_drawn_for(f: Format) -> None:
    """A format of nine bits, or one that a float32 array does not hold."""
    assert f.bits <= 8
    emu.round_to(np.ones(2, np.float32), f)


def test_every_mode_and_policy_is_drawn() -> None:
    """A mode that is never tested."""
    found = drawn(strategies.roundings("e5m2"), 200)
    assert {r.mode for r in found} == set(RoundingMode)
    assert {r.overflow for r in found} == set(emu.Overflow)
    assert {r.mode for r in drawn(strategies.roundings(modes=["to-odd"]), 20)} == {"to-odd"}


def test_bit_patterns_are_all_codes() -> None:
    """The codes of NaN, of negative numbers or of zero left out, or a code of nine bits."""
    assert set(drawn(strategies.bit_patterns("e2m1fn"), 300)) == set(range(16))
    with pytest.raises(ValueError, match="unknown format"):
        strategies.bit_patterns("bf17")


@given(strategies.arrays("e4m3fn", "bfloat16", shape=(2, 5)))
@quick
def test_arrays_have_the_shape_and_type(x: np.ndarray) -> None:
    """An array of the default shape, or in float64."""
    assert x.shape == (2, 5) and x.dtype.name == "bfloat16"


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4", "mxint8", "nvfp4", "fp8_128x128"])
def test_blocks_are_whole_and_their_maxima_lie_where_rules_decide(name: str) -> None:
    """Maxima in the middle of a binade, where every rule gives the same scale."""
    f = emu.block_format(name)
    found = drawn(strategies.blocks(name, 2), 40)
    significands = set()
    for x in found:
        assert x.shape == (f.rows, 2 * f.size) and x.dtype == np.float32
        assert np.isfinite(x).all() and x.any()
        significands |= {math.frexp(float(np.abs(b).max()))[0] * 2 for b in np.hsplit(x, 2)}
    m = math.ldexp(f.element.format.max_finite, -f.element.format.emax)
    assert {1.0, m} <= significands
    assert {float(np.nextafter(np.float32(m), np.float32(s))) for s in (0, 3)} & significands
    largest = [float(np.abs(b).max()) for x in found for b in np.hsplit(x, 2)]
    assert min(largest) < 2.0**-60 and max(largest) > 2.0**60


def test_the_rules_of_mx_disagree_on_blocks() -> None:
    """Blocks on which floor, ceil, even and rceil give one scale, so that none is told apart."""
    found = np.concatenate(drawn(strategies.blocks("mxfp8_e4m3", 4), 100))
    scales = {
        rule: np.asarray(emu.to_blocks(found, "mxfp8_e4m3", rule=rule).scales)
        for rule in ("floor", "ceil", "even", "rceil", "bump")
    }
    for a in scales:
        for b in scales:
            assert a == b or (scales[a] != scales[b]).any() or {a, b} == {"rceil", "bump"}


@quick
@given(strategies.block_formats())
def test_block_formats_are_valid(f: emu.BlockFormat) -> None:
    """A rule that a format does not allow, or an element format of another block format."""
    assert emu.block_format(f, rule=f.rule) == f and f.element.format.bits <= 8


def test_arguments_that_are_refused() -> None:
    """An error of Hypothesis, a hundred lines below the misspelt name."""
    with pytest.raises(ValueError, match="carrier 'single'"):
        strategies.values("bf16", "single")
    with pytest.raises(ValueError, match="max_bits=3"):
        strategies.formats(max_bits=3)
    with pytest.raises(ValueError, match="count=0"):
        drawn(strategies.blocks("mxfp4", 0), 1)
