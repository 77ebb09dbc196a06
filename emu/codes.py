"""Between the numbers of a format and their codes, on integers, for any array library.

A code is sign | exponent | fraction; as an integer it counts the magnitudes from zero upward, so the code of
a magnitude is its rank among the format's numbers.
"""

import math

from emu.formats import Format
from emu.ops import Array, Ops


def encode(ops: Ops, x: Array, f: Format) -> Array:
    """The codes (int64) of float64 numbers that the format holds; infinity and NaN take the codes above the largest."""
    xp, p = ops.xp, f.precision
    b = ops.bits(x)
    a = b & 0x7FFF_FFFF_FFFF_FFFF
    emin = f.emin + 1023
    normal = (a >> (53 - p)) - ((emin - 1) << (p - 1))
    significand = (a & (2**52 - 1)) | 2**52
    subnormal = significand >> xp.clip(53 - p + emin - (a >> 52), 0, 63)
    code = xp.where(a >= emin << 52, normal, xp.where(a == 0, 0, subnormal))
    top = _rank(f, f.max_finite)
    special = xp.where(a == 0x7FF0_0000_0000_0000, top + 1, top + 1 + int(f.inf))
    code = xp.where(a >= 0x7FF0_0000_0000_0000, special, code)
    return code | (xp.where(b < 0, 1, 0) << (f.bits - 1))


def decode(ops: Ops, code: Array, f: Format) -> Array:
    """The float64 numbers of codes (int64); codes above the largest finite number are infinity, then NaN."""
    xp, p = ops.xp, f.precision
    sign = code >> (f.bits - 1)
    rank = code & ((1 << (f.bits - 1)) - 1)
    normal = ops.from_bits((rank + ((f.emin + 1023 - 1) << (p - 1))) << (53 - p))
    subnormal = rank.astype("float64") * f.min_positive
    x = xp.where(rank >= 1 << (p - 1), normal, subnormal)
    top = _rank(f, f.max_finite)
    special = xp.where(rank == top + 1, math.inf if f.inf else math.nan, math.nan)
    x = xp.where(rank > top, special, x)
    return xp.where(sign == 1, -x, x)


def _rank(f: Format, x: float) -> int:
    """How many numbers of the format lie in (0, x], x one of them and normal."""
    e = math.frexp(x)[1] - 1
    return round(math.ldexp(x, f.precision - 1 - e)) + (e - f.emin) * (1 << (f.precision - 1))
