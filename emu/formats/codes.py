"""Conversion between the numbers of a format and their codes, on integers, for any array library.

A code consists of the sign bit, the exponent field and the fraction, in this order. Read as an
integer, the code of a magnitude is its rank among the format's magnitudes, counted from zero
upward. `emu.explanation.encoding` does the same for one number in exact arithmetic.
"""

import math

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.format import Format

INFINITY = 0x7FF0_0000_0000_0000


def encode(ops: Ops, x: Array, f: Format) -> Array:
    """Return the codes (int64) of float64 numbers that the format holds.

    NaN becomes the format's quiet NaN.
    """
    xp, p = ops.xp, f.precision
    b = ops.bits(x)
    a = b & 0x7FFF_FFFF_FFFF_FFFF
    emin = f.emin + 1023
    normal = (a >> (53 - p)) - _offset(f)
    significand = (a & (2**52 - 1)) | 2**52
    subnormal = significand >> xp.clip(53 - p + emin - (a >> 52), 0, 63)
    code = xp.where(a >= _lowest(f), normal, xp.where(a == 0, 0, subnormal))
    code = xp.where(a >= INFINITY, xp.where(a == INFINITY, _top(f) + 1, _nan(f)), code)
    return code | (xp.where(b < 0, 1, 0) << (f.bits - 1)) if f.signed else code


def decode(ops: Ops, code: Array, f: Format) -> Array:
    """Return the float64 numbers of codes (int64).

    The code after that of the largest finite number is infinity, if the format has it; all codes
    after these are NaN.
    """
    xp, p = ops.xp, f.precision
    sign = 1 << (f.bits - 1) if f.signed else 0
    rank = code & ((1 << (f.bits - int(f.signed))) - 1)
    normal = (rank + _offset(f)) << (53 - p)
    subnormal = rank.astype("float64") * f.min_positive
    x = xp.where(normal >= _lowest(f), ops.from_bits(normal), subnormal)
    special = xp.where(rank == _top(f) + 1, math.inf if f.inf else math.nan, math.nan)
    x = xp.where(rank > _top(f), special, x)
    # a sign is a bit: on a GPU the negative of a NaN is a positive one
    x = ops.from_bits(ops.bits(x) | ((code & sign) << (64 - f.bits)))
    # in fnuz formats the code of -0 is NaN
    return x if f.negative_zero or not f.signed else xp.where(code == sign, math.nan, x)


def _offset(f: Format) -> int:
    """Return what to subtract from a normal number's bits to get its code.

    The bits are those of binary64, cut to p - 1 fraction bits.
    """
    return (f.emin + 1022 + int(not f.zero)) << (f.precision - 1)


def _lowest(f: Format) -> int:
    """Return binary64's bits of 2^emin, below which the format's exponent field is 0.

    For binary64's own emin, binary64 has the same subnormal numbers, so the result is 0.
    """
    return (f.emin + 1023) << 52 if f.emin > -1022 else 0


def _top(f: Format) -> int:
    """Return the code of the largest finite number."""
    units = round(math.ldexp(f.max_finite, f.precision - 1 - f.emax))
    return units + ((f.emax + 1023) << (f.precision - 1)) - (1 << (f.precision - 1)) - _offset(f)


def _nan(f: Format) -> int:
    """Return the code of NaN.

    In a format with infinities it is the code of infinity with the first fraction bit set. In other
    formats it follows the code of the largest number.
    """
    return (_top(f) + 1) | (1 << (f.precision - 2) if f.inf else 0)
