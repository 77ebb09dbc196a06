"""One block quantised from the definitions, in exact rational arithmetic: what the tests of block
formats compare with.

It shares the records and the judge of one rounding with emu, and no line of the block code.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from roundscope.emu import BlockFormat, Rounding, RoundingMode, ScaleRule
from roundscope.emu.roundings.judge import exponent, judge

TWO = Fraction(2)


def scale(top: Fraction, f: BlockFormat, tensor: Fraction = Fraction(1)) -> Fraction:
    """X of a block whose largest magnitude is `top`, by the sentence of each rule."""
    e = f.element.format
    low, high = Fraction(f.scale.min_positive), Fraction(f.scale.max_finite)
    if not top:
        return low
    emax, m = math.frexp(e.max_finite)[1] - 1, Fraction(e.max_finite)
    if f.rule is ScaleRule.FLOOR:
        x = TWO ** (exponent(top) - emax)
    elif f.rule is ScaleRule.CEIL:
        x = TWO ** (_ceil_log2(top) - emax)
    elif f.rule is ScaleRule.EVEN:
        away = Rounding(format=e, mode=RoundingMode.TIES_TO_AWAY)
        unit = TWO ** (exponent(top) - away.format.precision + 1)
        x = TWO ** (exponent(math.floor(top / unit + Fraction(1, 2)) * unit) - emax)
    elif f.rule is ScaleRule.BUMP:
        x = TWO ** (exponent(top) - emax + (top > Fraction(7, 4) * TWO ** exponent(top)))
    elif f.rule is ScaleRule.RCEIL and f.scale.precision == 1:
        x = TWO ** _ceil_log2(top / m)
    else:
        mode = (
            RoundingMode.TOWARD_POSITIVE if f.rule is ScaleRule.RCEIL else RoundingMode.TIES_TO_EVEN
        )
        bounded = min(max(top / (m * tensor), low), high)
        x = Fraction(judge(bounded, Rounding(format=f.scale, mode=mode)))
    return min(max(x, low), high)


def _ceil_log2(x: Fraction) -> int:
    e = exponent(x)
    return e + (x != TWO**e)


def tensor_scale(x: np.ndarray, f: BlockFormat) -> Fraction:
    """T: given, or the largest finite magnitude over the product of the two largest numbers,
    rounded to binary32.
    """
    if f.tensor_scale is not None:
        return Fraction(f.tensor_scale)
    top = max(
        (Fraction(float(abs(v))) for v in x.reshape(-1) if math.isfinite(v)), default=Fraction(0)
    )
    if not f.tensor or not top:
        return Fraction(1)
    largest = 256 if f.rule is ScaleRule.FOUR_OVER_SIX else Fraction(f.scale.max_finite)
    exact = top / largest / Fraction(f.element.format.max_finite)
    return max(
        Fraction(float(np.float32(float(exact)))), Fraction(2) ** -149
    )  # two roundings: fine away from ties


def block(
    values: Sequence[float], f: BlockFormat, random: Sequence[int], tensor: Fraction = Fraction(1)
) -> tuple[float, list[float]]:
    """(X, elements P) of one block; (NaN, zeros) where a value is no finite number."""
    if not all(map(math.isfinite, values)):
        return math.nan, [0.0] * len(values)
    top = max(abs(Fraction(v)) for v in values)
    if f.rule is not ScaleRule.FOUR_OVER_SIX:
        x = scale(top, f, tensor)
        return float(x), _elements(values, x * tensor, f, random)
    found = []
    for m in (6, 4):  # the scale of top / m, which is that of (6 top / m) / 6
        x = scale(top * 6 / m, replace(f, rule=ScaleRule.NEAREST), tensor)
        elements = _elements(values, x * tensor, f, random)
        errors = [
            x * tensor * Fraction(p) - Fraction(v) for p, v in zip(elements, values, strict=True)
        ]
        found.append((sum(e * e for e in errors), float(x), elements))
    _, x, elements = min(found, key=lambda each: each[0])  # the first of equal ones
    return x, elements


def _elements(
    values: Sequence[float], unit: Fraction, f: BlockFormat, random: Sequence[int]
) -> list[float]:
    pairs = zip(values, random, strict=True)
    return [_element(Fraction(v) / unit, v, f, lot) for v, lot in pairs]


def _element(q: Fraction, v: float, f: BlockFormat, lot: int) -> float:
    if q:
        return judge(q, f.element, lot)  # type: ignore[arg-type]  # it asks only for Fraction(x) and its sign
    return math.copysign(0.0, v) if f.element.format.negative_zero else 0.0
