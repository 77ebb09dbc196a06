"""What every rounding obeys, whatever the format: laws over all named formats and any e<x>m<y>."""

import math
from dataclasses import replace
from fractions import Fraction

import jax
import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roundscope.emu.backends.numba import rounding as kernels
from roundscope.emu.backends.xla import rounding as xla
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.emu.roundings.judge import judge, neighbours, spacing
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode, rounding
from roundscope.emu.roundings.random import random31

law = settings(deadline=None, derandomize=True, max_examples=150, database=None)

SYMMETRIC = [
    m for m in RoundingMode if m not in (RoundingMode.TOWARD_POSITIVE, RoundingMode.TOWARD_NEGATIVE)
]

formats = st.one_of(
    st.sampled_from(list(NAMED.values())),
    st.builds(lambda x, y: format_named(f"e{x}m{y}"), st.integers(2, 11), st.integers(1, 52)),
)
signed_formats = formats.filter(lambda f: f.signed)
modes = st.sampled_from(list(RoundingMode))
random_bits = st.integers(0, 2**31 - 1)


@st.composite
def roundings(draw: st.DrawFn, of: st.SearchStrategy[Format] = formats) -> Rounding:
    """Any format, mode and policies that go together."""
    f = draw(of)
    policies = [
        Overflow.SATURATE,
        *([Overflow.INF] if f.inf else []),
        *([Overflow.NAN] if f.nan else []),
    ]
    overflow, nan = draw(st.sampled_from(policies)), draw(st.sampled_from(list(NanPolicy)))
    return rounding(f, draw(modes), overflow=overflow, nan=nan)


@st.composite
def numbers(draw: st.DrawFn, f: Format) -> float:
    """A finite binary64 number that f finds hard: near a code, a midpoint, its largest number, or
    any.
    """
    kind = draw(st.sampled_from(["near", "near", "top", "any"]))
    if kind == "any":
        return draw(st.floats(allow_nan=False, allow_infinity=False))
    exponent = (
        draw(st.integers(max(f.emin - f.precision, -1060), f.emax)) if kind == "near" else f.emax
    )
    code = draw(
        st.integers(2 << f.precision, (4 << f.precision) - 1)
    )  # in quarters of the spacing, or finer
    with np.errstate(over="ignore"):
        x = float(np.ldexp(float(code), exponent - f.precision - 1))
    x = draw(st.sampled_from([x, math.nextafter(x, 0), math.nextafter(x, math.inf)]))
    assume(math.isfinite(x))
    return draw(st.sampled_from([x, -x]))


@st.composite
def roundings_and_numbers(
    draw: st.DrawFn, of: st.SearchStrategy[Format] = formats, count: int = 1
) -> tuple[Rounding, list[float]]:
    r = draw(roundings(of))
    x = draw(st.lists(numbers(r.format), min_size=count, max_size=count))
    return r, x if r.format.signed else [abs(v) or 1.0 for v in x]


def rounded(x: float, r: Rounding, random: int = 0) -> float:
    """One number through the NumPy executor, over the binary64 carrier."""
    return float(kernels.round_array(np.array([x]), r, np.array([random], np.int32))[0])


def same(x: float, y: float) -> bool:
    """Equal bits, or both NaN."""
    return (math.isnan(x) and math.isnan(y)) or (
        x == y and math.copysign(1, x) == math.copysign(1, y)
    )


@law
@given(roundings_and_numbers(), random_bits)
def test_a_rounding_is_the_judges(case: tuple[Rounding, list[float]], random: int) -> None:
    r, (x,) = case
    assert same(rounded(x, r, random), judge(x, r, random))


@law
@given(roundings_and_numbers(count=8), st.lists(random_bits, min_size=8, max_size=8))
def test_executors_agree(case: tuple[Rounding, list[float]], random: list[int]) -> None:
    """NumPy's and XLA's results have the same bits."""
    r, x = case
    values, bits = np.array(x), np.array(random, np.int32)
    with jax.enable_x64(True):
        got = np.asarray(xla.round_array(jax.numpy.asarray(values), r, jax.numpy.asarray(bits)))
    want = kernels.round_array(values, r, bits)
    assert all(map(same, got.tolist(), want.tolist()))


@law
@given(roundings_and_numbers(), random_bits, random_bits)
def test_idempotent(case: tuple[Rounding, list[float]], first: int, second: int) -> None:
    """R(R(x)) = R(x), in the stochastic mode too, whatever the bits of the second."""
    r, (x,) = case
    once = rounded(x, r, first)
    assert same(rounded(once, r, second), once)


@law
@given(roundings_and_numbers(count=2), random_bits)
def test_monotone(case: tuple[Rounding, list[float]], random: int) -> None:
    """x <= y gives R(x) <= R(y), in the stochastic mode for equal bits (mirrored in sign, so of one
    sign).
    """
    r, x = case
    low, high = (rounded(v, r, random) for v in sorted(x))
    assume(not (math.isnan(low) or math.isnan(high)))
    assert low <= high


@law
@given(roundings_and_numbers(signed_formats), st.sampled_from(SYMMETRIC), random_bits)
def test_symmetric_in_sign(
    case: tuple[Rounding, list[float]], mode: RoundingMode, random: int
) -> None:
    """R(-x) = -R(x) for every mode that looks at magnitudes; the two directed ones mirror each
    other.
    """
    r, (x,) = case
    mirror = replace(r, mode=mode)
    assert rounded(-x, mirror, random) == -rounded(x, mirror, random) or math.isnan(
        rounded(x, mirror, random)
    )
    up = replace(r, mode=RoundingMode.TOWARD_POSITIVE)
    down = replace(r, mode=RoundingMode.TOWARD_NEGATIVE)
    assert rounded(-x, up) == -rounded(x, down) or math.isnan(rounded(x, down))


@law
@given(roundings_and_numbers(), random_bits)
def test_the_result_is_a_number_of_the_format(
    case: tuple[Rounding, list[float]], random: int
) -> None:
    r, (x,) = case
    y, f = rounded(x, r, random), r.format
    if math.isnan(y):
        assert r.overflow is Overflow.NAN
    elif math.isinf(y):
        assert r.overflow is Overflow.INF
    else:
        assert neighbours(y, f) == (y, y) and abs(y) <= f.max_finite
        assert f.zero or y >= f.min_positive
        assert f.negative_zero or not same(y, -0.0)


@law
@given(roundings_and_numbers(), random_bits)
def test_faithful(case: tuple[Rounding, list[float]], random: int) -> None:
    """Within range, every mode gives one of the two neighbours, and each directed mode its own."""
    r, (x,) = case
    below, above = neighbours(x, r.format)
    assume(max(abs(below), abs(above)) <= r.format.max_finite and (r.format.zero or below > 0))
    assert rounded(x, r, random) in (below, above)
    assert rounded(x, replace(r, mode=RoundingMode.TOWARD_NEGATIVE)) == below
    assert rounded(x, replace(r, mode=RoundingMode.TOWARD_POSITIVE)) == above


@law
@given(
    roundings_and_numbers(), st.sampled_from([RoundingMode.TIES_TO_EVEN, RoundingMode.TIES_TO_AWAY])
)
def test_nearest_is_within_half_an_ulp(
    case: tuple[Rounding, list[float]], mode: RoundingMode
) -> None:
    """|R(x) - x| <= ulp(x) / 2, and a tie to even ends in an even code."""
    r, (x,) = case
    y, f = rounded(x, replace(r, mode=mode)), r.format
    assume(math.isfinite(y) and abs(x) <= f.max_finite and (f.zero or x >= f.min_positive))
    ulp = spacing(Fraction(x), f)
    error = abs(Fraction(y) - Fraction(x))
    assert error <= ulp / 2
    if error == ulp / 2:
        assert abs(y) > abs(x) if mode is RoundingMode.TIES_TO_AWAY else Fraction(y) / ulp % 2 == 0


narrow_formats = formats.filter(lambda f: f.precision <= 40 and f.emin > -1000 and f.emax < 1000)


@law
@given(roundings_and_numbers(narrow_formats), st.integers(2, 12))
def test_to_odd_then_nearest_is_nearest(case: tuple[Rounding, list[float]], extra: int) -> None:
    """RNE_p(RO_{p+n}(x)) = RNE_p(x) for n >= 2: rounding to odd makes the second rounding
    harmless.
    """
    r, (x,) = case
    f = r.format
    p = f.precision + extra
    top = math.ldexp(2 - math.ldexp(1, 1 - p), f.emax + 1)
    wide = Format(name="wide", precision=p, emin=f.emin, max_finite=top, inf=False, nan=False)
    nearest = replace(r, mode=RoundingMode.TIES_TO_EVEN)
    assert same(rounded(rounded(x, rounding(wide, "to-odd")), nearest), rounded(x, nearest))


@law
@given(roundings_and_numbers(), random_bits)
def test_stochastic_goes_up_by_its_position(
    case: tuple[Rounding, list[float]], random: int
) -> None:
    """|R(x)| is the outer neighbour if and only if floor(position 2^31) > random."""
    r, (x,) = case
    inner, outer = sorted(map(abs, neighbours(x, r.format)))
    assume(inner < outer <= r.format.max_finite and (r.format.zero or inner > 0))
    position = (abs(Fraction(x)) - inner) / (outer - inner)
    up = math.floor(position * 2**31) > random
    assert abs(rounded(x, replace(r, mode=RoundingMode.STOCHASTIC), random)) == (
        outer if up else inner
    )


@settings(law, max_examples=40)
@given(roundings_and_numbers(), st.integers(0, 2**32 - 1))
def test_stochastic_frequency_is_the_position(
    case: tuple[Rounding, list[float]], seed: int
) -> None:
    """Over 2^14 threefry draws the mean of R(x) is x, to five standard deviations and 2^-31 of an
    ulp.
    """
    r, (x,) = case
    n = 1 << 14
    inner, outer = sorted(map(abs, neighbours(x, r.format)))
    assume(inner < outer <= r.format.max_finite and (r.format.zero or inner > 0))
    key = (np.array([v], np.uint32) for v in (seed, 0))
    counter = (np.arange(n, dtype=np.uint32), np.zeros(1, np.uint32))
    random = random31(tuple(key), counter).astype(np.int32)
    y = np.abs(kernels.round_array(np.full(n, x), replace(r, mode=RoundingMode.STOCHASTIC), random))
    position = float((abs(Fraction(x)) - inner) / (outer - inner))
    frequency = float(np.mean(y == float(outer)))
    assert set(y) <= {float(inner), float(outer)}
    assert abs(frequency - position) <= 5 * math.sqrt(position * (1 - position) / n) + 1 / n
