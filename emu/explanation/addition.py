"""A sum of two numbers in aligned bits, which shows where a carry pushes one bit off the end."""

import math
from dataclasses import dataclass
from fractions import Fraction

from roundscope.emu.explanation.numbers import parse
from roundscope.emu.explanation.one_rounding import split
from roundscope.emu.formats.format import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """a + b with both operands at the larger exponent.

    Attributes:
        a: the first operand, a binary64 number.
        b: the second operand.
        total: their sum as a binary64 number.
        exact: whether total is the exact sum.
        exponent: the exponent of the bit before the point, whose weight is 2^exponent.
        rows: |a|, |b| and |a + b| in bits, each as a pair: the bits before the point and those
            after it. The point comes after the column of 2^exponent.
        shift: how many places the sum moves to have one bit before the point. 1 means a carry into
            a new binade, and a negative number means cancellation.
    """

    a: float
    b: float
    total: float
    exact: bool
    exponent: int
    rows: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]
    shift: int


def add(a: float | str, b: float | str, f: Format) -> Addition:
    """Return the sum of two finite numbers other than 0, aligned on the format's grid.

    Raises ValueError for other numbers, and for two numbers whose sum is 0.
    """
    x, y = parse(a)[0], parse(b)[0]
    if not (math.isfinite(x) and math.isfinite(y) and x + y != 0 and x != 0 and y != 0):
        raise ValueError(
            f"--plus {b}: a sum is drawn for finite numbers other than 0; explain {x + y!r} instead"
        )
    total, exact = x + y, Fraction(x) + Fraction(y)
    exponent = max(split(abs(Fraction(v)), f)[0] for v in (x, y))
    row_a, row_b, row_sum = (
        _digits(abs(v) / Fraction(2) ** exponent) for v in (Fraction(x), Fraction(y), exact)
    )
    return Addition(
        a=x,
        b=y,
        total=total,
        exact=Fraction(total) == exact,
        exponent=exponent,
        rows=(row_a, row_b, row_sum),
        shift=split(abs(exact), f)[0] - exponent,
    )


def _digits(units: Fraction) -> tuple[str, str]:
    """Return the binary digits before and after the point, up to the last 1."""
    places = units.denominator.bit_length() - 1
    bits = f"{units.numerator:0{places + 1}b}"
    return bits[: len(bits) - places], bits[len(bits) - places :]
