"""The paper's example in bits: two unit weights and a residual.

It is computed by emulation and with rational numbers.
"""

from fractions import Fraction

import numpy as np

from roundscope import emu
from roundscope.experiments.framework.verdicts import Verdict, Word

FIGURE = "3.3, bits"
V, RESIDUAL = (-2.40625, -2.296875), -0.000865459442139  # PAPERS 1.4
SUM, ROUNDED, ERROR = -4.703990459442139, -4.71875, -0.014759540557861328  # as the paper prints
BITS = 8  # p of BF16


def nearest(x: Fraction, bits: int, *, even: bool = True) -> Fraction:
    """Return x rounded to so many significand bits, by definition, in rational numbers.

    Ties go to even or away from zero.
    """
    ulp = Fraction(1)
    while abs(x) >= ulp * 2**bits:
        ulp *= 2
    while abs(x) < ulp * 2 ** (bits - 1):
        ulp /= 2
    whole, rest = divmod(abs(x) / ulp, 1)
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and (not even or whole % 2 == 1))
    return (whole + up) * ulp * (1 if x > 0 else -1)


def judged() -> list[Verdict]:
    """Return verdicts on both versions of the example."""
    return [_with_residual(), _without(), _tie_rule()]


def _with_residual() -> Verdict:
    total = float(emu.sum(np.array([[*V, RESIDUAL]]))[0])
    rounded = float(emu.round_to(total, "bf16"))
    by_fractions = nearest(Fraction(total), BITS)
    error = by_fractions - Fraction(total)
    agrees = (total, rounded, Fraction(rounded), error) == (
        SUM,
        ROUNDED,
        by_fractions,
        Fraction(ERROR),
    )
    return _verdict(
        "two tied terms and a small residual sum to -4.70399 in FP32 and round to -4.71875: error"
        " -0.0147595",
        agrees,
        f"sum {total!r}, rounded {rounded!r}, error {float(error)!r}; the same in rational numbers",
    )


def _without() -> Verdict:
    total = sum(map(Fraction, V), Fraction(0))
    even, away = nearest(total, BITS), nearest(total, BITS, even=False)
    emulated = (
        float(emu.round_to(float(total), "bf16")),
        float(emu.round_to(float(total), "bf16", "ties-to-away")),
    )
    assert emulated == (float(even), float(away))
    return _verdict(
        "v1: without a residual the sum rounds to -4.71875 too",
        even == Fraction(ROUNDED),
        f"{float(total)!r} is an exact tie: {float(even)!r} by ties to even, {float(away)!r} by"
        " ties away from zero",
        "v2 of the paper added the residual (issue 1 of its repository)",
    )


def _tie_rule() -> Verdict:
    """Return the verdict on the tie rule: the example's sum is a tie, decided by the sticky bit."""
    total = sum(map(Fraction, V), Fraction(0))
    sides = {sign: nearest(total + sign * Fraction(RESIDUAL), BITS) - total for sign in (1, -1)}
    half = abs(sides[1])
    agrees = sides[1] < 0 < sides[-1] and abs(sides[-1]) == half == Fraction(1, 64)
    return _verdict(
        "the residual's sign decides the tie (the sticky bit)",
        agrees,
        f"same sign: {float(sides[1]):+g}, opposite sign: {float(sides[-1]):+g}, half an ulp of the"
        " result each",
    )


def _verdict(claim: str, agrees: bool, measured: str, note: str = "") -> Verdict:
    word = Word.AGREES if agrees else Word.CONTRADICTS
    return Verdict(
        figure=FIGURE, claim=claim, case="BF16", sizes="", word=word, measured=measured, note=note
    )
