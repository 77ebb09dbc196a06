"""The independent judge: one number rounded from the definition, in exact rational arithmetic.

It uses the records `Format` and `Rounding`, as `emu.roundings.rule` does, but its method is
entirely different. It computes the two numbers of the format around x as fractions and chooses one
of them as the mode's definition says; IEEE 754-2019, 4.3 defines the first five modes. It is slow
(tens of microseconds a number) and meant to be read; only tests use it.
"""

import math
from fractions import Fraction
from functools import cache

from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode

HALF = Fraction(1, 2)


@cache
def power(e: int) -> Fraction:
    """Return 2^e; the same few exponents come again and again."""
    return Fraction(2) ** e


def exponent(x: Fraction) -> int:
    """Return the integer e with 2^e <= |x| < 2^(e + 1); x must not be zero."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if abs(x) >= power(e) else e - 1


def spacing(x: Fraction, format: Format) -> Fraction:
    """Return one ulp at x: 2^(e - p + 1), where p is the precision of the format.

    e is the exponent of x, or the format's smallest exponent emin where |x| is below 2^emin.
    """
    e = exponent(x) if x else format.emin
    return power(max(e, format.emin) - format.precision + 1)


def neighbours(x: float | Fraction, format: Format) -> tuple[Fraction, Fraction]:
    """Return the numbers just below and just above a finite x; both are x where the format holds x.

    The exponent has no upper bound, so that a result may exceed `max_finite`: IEEE 754-2019, 7.4
    rounds in this way before it tests for overflow. Zero counts as a number of every format.
    """
    exact = Fraction(x)
    unit = spacing(exact, format)
    return unit * math.floor(exact / unit), unit * math.ceil(exact / unit)


def judge(x: float, r: Rounding, random: int = 0) -> float:
    """Return x rounded once as r says, for any binary32 or binary64 number x.

    No other rounding takes part, since all arithmetic is on exact fractions. `random` is the
    stochastic mode's integer in [0, 2^31): x goes away from zero if and only if floor(f * 2^31) >
    random, where f is the exact position of |x| between its neighbors, from 0 to 1.
    """
    f = r.format
    if math.isnan(x):
        return math.nan if f.nan or r.nan is NanPolicy.KEEP else 0.0
    if not f.signed and (x == 0 or math.copysign(1, x) < 0):
        return math.nan  # e8m0fnu has neither zero nor negative numbers
    if math.isinf(x):
        return _signed(_overflowed(r), x, f)
    magnitude = _magnitude(Fraction(x), r, random)
    if magnitude > Fraction(f.max_finite):
        return _signed(f.max_finite if _stops(r.mode, x) else _overflowed(r), x, f)
    if magnitude == 0 and not f.zero:
        return f.min_positive
    return _signed(float(magnitude), x, f)


def _magnitude(x: Fraction, r: Rounding, random: int) -> Fraction:
    """Return |x| rounded as if the exponent had no upper bound."""
    inner, outer = sorted(map(abs, neighbours(x, r.format)))
    if inner == outer:
        return inner
    position = (abs(x) - inner) / (outer - inner)
    odd = inner / spacing(x, r.format) % 2 == 1
    return outer if _goes_out(r.mode, position, odd, x > 0, random) else inner


def _goes_out(
    mode: RoundingMode, position: Fraction, odd: bool, positive: bool, random: int
) -> bool:
    """Return whether a number between two neighbors goes to the one farther from zero.

    Args:
        mode: the rounding mode.
        position: (|x| - inner) / (outer - inner), in (0, 1).
        odd: whether the inner neighbor is an odd multiple of the spacing. In a format with one
            significand bit it always is, and a tie goes to the larger magnitude (IEEE 754-2019,
            4.3.1).
        positive: whether x is positive.
        random: the stochastic mode's integer in [0, 2^31).
    """
    match mode:
        case RoundingMode.TIES_TO_EVEN:
            return position > HALF or (position == HALF and odd)
        case RoundingMode.TIES_TO_AWAY:
            return position >= HALF
        case RoundingMode.TOWARD_ZERO:
            return False
        case RoundingMode.TOWARD_POSITIVE:
            return positive
        case RoundingMode.TOWARD_NEGATIVE:
            return not positive
        case RoundingMode.AWAY_FROM_ZERO:
            return True
        case RoundingMode.TO_ODD:
            return not odd
        case RoundingMode.STOCHASTIC:
            return math.floor(position * 2**31) > random


def _stops(mode: RoundingMode, x: float) -> bool:
    """Return whether overflow gives the largest finite number in this mode, for a number x.

    IEEE 754-2019, 7.4 b to d says so for the modes that round x toward zero.
    """
    inward = RoundingMode.TOWARD_NEGATIVE if x > 0 else RoundingMode.TOWARD_POSITIVE
    return mode in (RoundingMode.TOWARD_ZERO, RoundingMode.TO_ODD, inward)


def _overflowed(r: Rounding) -> float:
    """Return the magnitude of the result for an overflow or an infinity, as the policy says."""
    return (
        math.inf
        if r.overflow is Overflow.INF
        else math.nan
        if r.overflow is Overflow.NAN
        else r.format.max_finite
    )


def _signed(magnitude: float, x: float, f: Format) -> float:
    """Return the magnitude with x's sign; a zero keeps the sign only where the format has -0."""
    return 0.0 if magnitude == 0 and not f.negative_zero else math.copysign(magnitude, x)
