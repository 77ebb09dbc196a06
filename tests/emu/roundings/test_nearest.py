"""`emu.roundings.nearest`: the two-addition rounding of sums under XLA has the rule's own bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.backends.xla.rounding import round_wide
from roundscope.emu.backends.xla.traced import Kind, rounding_of, row_of
from roundscope.emu.formats.format import NAMED
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import BF16, BINARY64, Rounding, RoundingMode, rounding
from roundscope.emu.roundings.nearest import nearest_even, takes_nearest_even
from roundscope.emu.roundings.rule import C64, target_of

COVERED = [
    r
    for n in (*NAMED, "e5m10", "e6m9", "e4m3")
    for o in (None, "saturate")
    if takes_nearest_even(r := rounding(n, overflow=o))
]


def arguments(r: Rounding) -> np.ndarray:
    """Wide random numbers, ties and their neighbours at every exponent of the format, zeros,
    specials.
    """
    rng, f = np.random.default_rng(0), r.format
    wide = np.ldexp(rng.standard_normal(1 << 16), rng.integers(-170, 135, 1 << 16))
    odd = np.ldexp(
        rng.integers(-(2**12), 2**12, 1 << 15).astype(float),
        rng.integers(f.emin - f.precision - 14, f.emax, 1 << 15),
    )
    ties = np.concatenate([odd, np.nextafter(odd, np.inf), np.nextafter(odd, -np.inf)])
    edge = f.max_finite * np.array([1.0, 1.0 + 2.0**-53, 1 + 2.0 ** -(f.precision + 1), 1.5, 2.0])
    special = np.array([0.0, np.inf, np.nan, 1e-300, 1e300, f.min_positive / 2, f.min_positive])
    return np.concatenate([wide, ties, edge, -edge, special, -special])


@pytest.mark.parametrize("r", COVERED, ids=str)
def test_two_additions_are_the_rule(r: Rounding) -> None:
    """A wrong sign of zero, overflow threshold, subnormal spacing, or a folded (x + c) - c."""
    with jax.enable_x64(True):
        x = arguments(r)
        fast = np.asarray(jax.jit(lambda x: nearest_even(x, target_of(r, C64)))(x))
        traced = np.asarray(_as_data(x, row_of(r)))
        rule = np.asarray(jax.jit(lambda x: round_wide(x, r))(x))
    for found in (fast, traced):
        same = (found.view(np.int64) == rule.view(np.int64)) | (np.isnan(found) & np.isnan(rule))
        assert same.all(), x[~same][:4]


def every_binade() -> np.ndarray:
    """First, middle and last number of every binade of binary64, both signs."""
    below_two = np.nextafter(2.0, 1.0)
    x = np.ldexp(np.array([1.0, 1.5, below_two])[:, None], np.arange(-1022, 1024)).reshape(-1)
    return np.concatenate([x, -x])


@pytest.mark.parametrize("r", COVERED, ids=str)
def test_two_additions_in_every_binade(r: Rounding) -> None:
    """The constant of a large number was NaN in one binade, near 2^995 for fp32, and so was the
    result.
    """
    x = every_binade()
    beyond, small = np.abs(x) >= 2.0 ** (r.format.emax + 1), np.abs(x) < r.format.min_positive / 4
    over = {"inf": np.inf, "nan": np.nan, "saturate": r.format.max_finite}[r.overflow]
    with jax.enable_x64(True):
        fast = np.asarray(jax.jit(lambda x: nearest_even(x, target_of(r, C64)))(x))
        traced = np.asarray(_as_data(x, row_of(r)))
    assert beyond.sum() > 5000 and small.sum() > 5000
    for found in (fast, traced):
        np.testing.assert_array_equal(np.abs(found[beyond]), over)
        np.testing.assert_array_equal(found[small], 0.0)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(x))
        between = ~beyond & ~small
        want = [judge(v, r) for v in x[between].tolist()]
        np.testing.assert_array_equal(found[between], want)


def test_what_overflows_by_far_is_infinite_in_sums_and_exp() -> None:
    """The two ways in which a user met that NaN."""
    x = np.linspace(85.0, 709.0, 4001, dtype=np.float32)
    for name in ("fp32", "bf16"):
        f = rounding(name).format
        midpoint = f.max_finite + 2.0 ** (f.emax - f.precision)
        assert np.array_equal(np.isinf(emu.exp(jnp.asarray(x), name)), x > np.log(midpoint))
    with jax.enable_x64(True):
        factors = (
            jnp.asarray(np.array([[1.5], [-1.5]]) * 2.0 ** np.arange(400.0, 1023.0)),
            jnp.ones((623, 1)),
        )
        each = [emu.dot(factors[0][:, k : k + 1], factors[1][:1]) for k in (0, 571, 595, 622)]
    assert all(np.array_equal(np.asarray(y), [[np.inf], [-np.inf]]) for y in each)


@jax.jit
def _as_data(x, row):
    return nearest_even(x, rounding_of(row, Kind.NEAREST).target)


def test_binary64_as_data_leaves_a_number_as_it_is() -> None:
    """Two additions would lose the last bit of 53."""
    with jax.enable_x64(True):
        x = np.nextafter(arguments(BF16), 0.0)
        assert np.array_equal(
            np.asarray(_as_data(x, row_of(BINARY64))).view(np.int64), x.view(np.int64)
        )


@pytest.mark.parametrize("mode", [m for m in RoundingMode if m is not RoundingMode.STOCHASTIC])
@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e4m3fnuz", "e8m0fnu", "e11m30", "fp64"])
def test_the_rule_takes_formats_and_modes_as_data(name: str, mode: RoundingMode) -> None:
    """A parameter that is lost between a Rounding and its row of integers."""
    r = rounding(name, mode)
    with jax.enable_x64(True):
        x = np.concatenate([arguments(r if r.format.fits_binary32 else BF16), [1e308, -1e308]])
        found = np.asarray(_rule_as_data(x, row_of(r)))
        expected = np.asarray(round_wide(jnp.asarray(x), r))
    same = (found.view(np.int64) == expected.view(np.int64)) | (
        np.isnan(found) & np.isnan(expected)
    )
    assert same.all(), x[~same][:4]


@jax.jit
def _rule_as_data(x, row):
    return round_wide(x, rounding_of(row, Kind.ANY))


def test_other_roundings_are_left_to_the_rule() -> None:
    others = (
        rounding("bf16", "toward-zero"),
        rounding("fp64"),
        rounding("e4m3fnuz"),
        rounding("e8m0fnu"),
    )
    assert not any(takes_nearest_even(r) for r in others)
