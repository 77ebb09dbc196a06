"""exp and log with one definition for every engine.

Both are evaluated in binary64 by one sequence of additions, guarded products and integer steps, so that
every engine gets the same bits; the result then rounds once to the event's format. The binary64 value is
within 0.6 ulp of the true one; a binary32 argument whose exp lies so close to a rounding boundary of
binary32 that this error could matter is in HARD_EXP (found by exhausting all 2^32 arguments, settled
with 60-digit arithmetic: `make exhaustive`). So exp of a binary32 argument rounds correctly to binary32 and
to every narrower format, in every mode.
"""

import math
from typing import Any

import numpy as np

from emu.hard_cases import HARD_EXP
from emu.ops import Ops

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has 21 trailing zero bits, so k * LN2_HIGH is exact for |k| < 2^21
LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SMALLEST_ARGUMENT = -400.0  # below it exp is 0: 2^-577, so no later product leaves binary64's normal range
EXP_TERMS = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))
LOG_TERMS = tuple(2.0 / n for n in range(23, 2, -2))


def _horner(ops: Ops, x: Any, coefficients: tuple[float, ...]) -> Any:
    """c_0 x^n + ... + c_n, each product and sum rounded to binary64 in turn."""
    y = coefficients[0]
    for c in coefficients[1:]:
        y = ops.multiply(x, y) + c
    return y


def exp64(ops: Ops, x: Any) -> Any:
    """e^x of a float64 array, within 0.6 ulp; 0 below -400, inf above 709.

    e^x = 2^k e^r, k = round(x / ln 2), r = x - k ln 2, |r| <= 0.35; e^r = 1 + (r + r^2 (1/2! + r/3! + ...)).
    """
    xp = ops.xp
    z = xp.clip(x, SMALLEST_ARGUMENT, 709.0)
    k = xp.floor(ops.multiply(z, LOG2_E) + 0.5)
    r = (z - ops.multiply(k, LN2_HIGH)) - ops.multiply(k, LN2_LOW)
    tail = ops.multiply(ops.multiply(r, r), _horner(ops, r, EXP_TERMS))
    power = ops.from_bits((k.astype(np.int64) + 1023) << 52)
    y = ops.multiply(1.0 + (r + tail), power)
    for argument, result in HARD_EXP:
        y = xp.where(x == argument, result, y)
    y = xp.where(x < SMALLEST_ARGUMENT, 0.0, xp.where(x > 709.0, math.inf, y))
    return xp.where(xp.isnan(x), x, y)


def log64(ops: Ops, x: Any) -> Any:
    """ln x of a positive normal float64 array, within 1 ulp; -inf at 0.

    ln x = k ln 2 + ln m, m in [sqrt(1/2), sqrt 2); ln m = 2 atanh(s), s = (m - 1) / (m + 1).
    """
    xp = ops.xp
    b = ops.bits(x)
    k = (b - 0x3FE6_A09E_667F_3BCD) >> 52  # sqrt(1/2): k is the exponent that leaves m in its interval
    m = ops.from_bits(b - (k << 52))
    s = (m - 1.0) / (m + 1.0)
    s2 = ops.multiply(s, s)
    series = ops.multiply(s, ops.multiply(s2, _horner(ops, s2, LOG_TERMS)))
    k = k.astype(np.float64)
    y = ops.multiply(k, LN2_HIGH) + ((s + s) + (series + ops.multiply(k, LN2_LOW)))
    y = xp.where(x == 0.0, -math.inf, xp.where(x == math.inf, math.inf, y))
    return xp.where(x < 0.0, math.nan, xp.where(xp.isnan(x), x, y))
