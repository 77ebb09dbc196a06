"""The direction of a rounding, decided on exact fractions and explained in words."""

import math
from fractions import Fraction

from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode

HALF = Fraction(1, 2)


def decide(kept: int, rest: Fraction, negative: bool, r: Rounding) -> tuple[bool, str]:
    """Return whether 1 is added to the kept part, and the reason in words."""
    odd = kept & 1 == 1
    if rest == 0:
        return False, f"nothing is discarded: this is a number of {r.format.name}"
    match r.mode:
        case RoundingMode.TO_ODD:
            return not odd, f"inexact: to the odd neighbor, and the kept part is {_parity(odd)}"
        case RoundingMode.TOWARD_ZERO:
            return False, "toward zero: what is discarded is dropped"
        case RoundingMode.AWAY_FROM_ZERO:
            return True, "away from zero: any discarded 1 adds one"
        case RoundingMode.TOWARD_POSITIVE | RoundingMode.TOWARD_NEGATIVE:
            outward = negative == (r.mode is RoundingMode.TOWARD_NEGATIVE)
            sign = "negative" if negative else "positive"
            return (
                outward,
                f"{r.mode} and {sign}: any discarded 1 {'adds one' if outward else 'is dropped'}",
            )
        case RoundingMode.STOCHASTIC:
            draw = first_random(r.seed)
            chance, drawn = math.floor(rest * 2**31), f"{draw / 2**31:.6f}"
            sign = ">" if chance > draw else "<="
            return (
                chance > draw,
                (
                    f"discarded part {chance / 2**31:.6f} of an ulp {sign} drawn {drawn} (seed"
                    f" {r.seed})"
                ),
            )
    if rest != HALF:
        bits = f"round bit {int(rest > HALF)}" + (", a sticky bit is 1" if rest > HALF else "")
        return (
            rest > HALF,
            f"{bits}: {'above' if rest > HALF else 'below'} half an ulp, to the nearest",
        )
    if r.mode is RoundingMode.TIES_TO_AWAY:
        return True, "round bit 1, no sticky bit: a tie, away from zero"
    return odd, f"round bit 1, no sticky bit: a tie, to even, and the kept part is {_parity(odd)}"


def overflow(negative: bool, r: Rounding) -> tuple[float, str]:
    """Return the result for a finite number beyond the largest, and why (IEEE 754-2019, 7.4)."""
    inward = {RoundingMode.TOWARD_ZERO, RoundingMode.TO_ODD}
    inward.add(RoundingMode.TOWARD_POSITIVE if negative else RoundingMode.TOWARD_NEGATIVE)
    largest, sign = r.format.max_finite, -1.0 if negative else 1.0
    if r.mode in inward:
        return sign * largest, f"beyond the largest number, {largest:g}: {r.mode} stops there"
    beyond = {Overflow.INF: math.inf, Overflow.NAN: math.nan, Overflow.SATURATE: largest}
    assert r.overflow is not None  # a `Rounding` fills it in when it is made
    became = beyond[r.overflow]
    return sign * became, f"beyond the largest number, {largest:g}: overflow={r.overflow}"


def first_random(seed: int) -> int:
    """Return the first random integer of a seed, in [0, 2^31)."""
    import numpy as np

    from roundscope.emu.roundings.random import random31

    key, zero = np.array([seed], np.uint32), np.zeros(1, np.uint32)
    return int(random31((key, zero), (zero, zero))[0])


def _parity(odd: bool) -> str:
    return "odd" if odd else "even"
