"""A sum of two numbers, aligned in bits: where a carry makes room by pushing one bit off."""

import math
from dataclasses import dataclass
from fractions import Fraction

from roundscope.emu.explain.numbers import parse
from roundscope.emu.explain.one_rounding import split
from roundscope.emu.formats.format import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """a + b with both operands at the larger exponent.

    a, b, total   binary64 numbers; `exact` says whether total is the exact sum
    exponent      weight of the bit before the point: 2^exponent
    rows          |a|, |b|, |a + b| in bits, the point after the first column: (before, after) the
                  point
    shift         how many places the sum moves to have one bit before the point: 1 is a carry out
                  into a new binade, negative numbers are cancellation
    """

    a: float
    b: float
    total: float
    exact: bool
    exponent: int
    rows: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]
    shift: int


def add(a: float | str, b: float | str, f: Format) -> Addition:
    """The sum of two finite numbers, not both 0, aligned on the format's grid.

    Raises ValueError else.
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
    """Binary digits before and after the point, up to the last 1."""
    places = units.denominator.bit_length() - 1
    bits = f"{units.numerator:0{places + 1}b}"
    return bits[: len(bits) - places], bits[len(bits) - places :]
