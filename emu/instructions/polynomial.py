"""2^x by multiply-adds instead of ex2, bit for bit, as in some columns of FlashAttention-4.

An addition that rounds down splits x into a whole number and a fraction. A polynomial in binary32
gives 2^fraction, and the whole number is added to the exponent's bits as an integer. Source:
flash_attn/cute/utils.py of Dao-AILab/flash-attention at 0251105 (`ex2_emulation`, `POLY_EX2` of
degree 3).
"""

import math

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.approximate import fma
from roundscope.emu.roundings.modes import BINARY32

DEGREE_3 = (
    0.077119089663028717041015625,
    0.227564394474029541015625,
    0.695146143436431884765625,
    1.0,
)
LOWEST, HIGHEST = -127.0, 128.0


def poly_ex2(ops: Ops, x: Array) -> Array:
    """Return 2^x for a float64 array of binary32 numbers, with a relative error up to 2^-13.4.

    This bound holds for -126 <= x < 128. Arguments below -127 are replaced by -127, whose result is
    0. For x between -127 and -126 the kernel's integer addition gives the subnormal number 2^-126
    (p - 1), where p is the polynomial's value. The kernel assumes that no argument is 128 or
    larger; here the result is infinite for such arguments.
    """
    xp = ops.xp
    z = xp.fmin(xp.fmax(x, LOWEST), HIGHEST)  # a number for NaN too
    whole = xp.floor(z)
    fraction = ops.round(z - whole, BINARY32, None)
    p = xp.full_like(fraction, DEGREE_3[0])
    for c in DEGREE_3[1:]:
        p = fma(ops, p, fraction, c)
    power = ops.from_bits((xp.fmax(whole, -126.0).astype(np.int64) + 1023) << 52)
    y = ops.multiply(xp.where(whole < -126.0, p - 1.0, p), power)
    return xp.where(xp.isnan(x), math.nan, xp.where(x >= HIGHEST, math.inf, y))
