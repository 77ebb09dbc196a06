"""The classes of numbers that a cast is asked about, found from the numbers themselves.

A quotient is what one rounding is given: the number itself, or in blocks the number divided by its
scale. Whether it is a tie or lies beyond the largest number depends on the quotient alone, so casts
with and without scales share these classes.
"""

from collections.abc import Mapping

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode, rounding
from roundscope.emu.testing.casts.records import Numbers, same

BESIDE = 2.0**-21  # how far from a tie a number counts as beside it, relative to the number
QUESTIONS: Mapping[str, str] = {
    "round trip": "Does every number of the format map to itself?",
    "ties": "Where does a number halfway between two numbers of the format go?",
    "beside ties": "Is a number that lies just beside a tie rounded to its own side?",
    "subnormals": "Are numbers below the smallest normal number rounded, and not flushed to zero?",
    "overflow": "What becomes of finite numbers above the largest number of the format?",
    "other numbers": "Are all other numbers rounded as asked?",
}


def classes_of(q: Numbers, r: Rounding) -> dict[str, np.ndarray]:
    """Return which quotients belong to each class of `QUESTIONS`, as boolean arrays.

    Only "round trip" overlaps with others: it has every number of the format. Zeros, infinities and
    NaN belong to no class.
    """
    f, a = r.format, np.abs(q)
    finite = np.isfinite(q) & (q != 0)
    low, high = bracket(q, f)
    middle = (low + high) / 2
    exact, over = finite & (low == q), finite & (a > f.max_finite)
    small = finite & ~exact & (a < f.min_normal)
    rest = finite & ~exact & ~over & ~small
    tie = rest & (q == middle)
    beside = rest & ~tie & (np.abs(q - middle) <= BESIDE * a)
    found = (exact & ~over, tie, beside, small, over, rest & ~tie & ~beside)
    return dict(zip(QUESTIONS, found, strict=True))


def bracket(q: Numbers, f: Format) -> tuple[Numbers, Numbers]:
    """Return the numbers of the format next to each quotient, toward zero and away from it.

    They are equal for a number of the format. Beyond the largest number both are that number.
    """
    toward = Rounding(format=f, mode=RoundingMode.TOWARD_ZERO, overflow=Overflow.SATURATE)
    away = Rounding(format=f, mode=RoundingMode.AWAY_FROM_ZERO, overflow=Overflow.SATURATE)
    return round_to(q, toward), round_to(q, away)


def allowed(q: Numbers, r: Rounding) -> tuple[Numbers, Numbers]:
    """Return the two results that a rounding may give for each quotient.

    They are equal unless the mode is stochastic.
    """
    if r.mode is not RoundingMode.STOCHASTIC:
        expected: Numbers = round_to(q, r)
        return expected, expected
    return (
        round_to(q, rounding(r, RoundingMode.TOWARD_ZERO)),
        round_to(q, rounding(r, RoundingMode.AWAY_FROM_ZERO)),
    )


def is_allowed(got: Numbers, q: Numbers, r: Rounding) -> tuple[np.ndarray, Numbers]:
    """Return where the results are allowed, and the expected result nearest to what was got."""
    one, other = allowed(q, r)
    with np.errstate(invalid="ignore"):
        expected = np.where(np.abs(got - other) < np.abs(got - one), other, one)
    return same(got, one) | same(got, other), expected
