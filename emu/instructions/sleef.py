"""Functions of the library Sleef, which PyTorch's vectorized kernels on a CPU call, bit for bit.

They are written with the multiply-adds that AVX2 and AVX-512 have. torch.exp of an array without
gaps calls another library.
"""

import math

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.approximate import fma
from roundscope.emu.roundings.modes import BINARY32

LOG2_E = float(np.float32(1.442695040888963407))
LN_2 = (0.693145751953125, float(np.float32(1.428606765330187045e-06)))  # in two parts
TERMS = tuple(
    float(np.float32(c))
    for c in (
        0.000198527617612853646278381,
        0.00139304355252534151077271,
        0.00833336077630519866943359,
        0.0416664853692054748535156,
        0.166666671633720397949219,
        0.5,
    )
)


def sleef_expf(ops: Ops, x: Array) -> Array:
    """Return e^x as Sleef_expf_u10 gives it (src/libm/sleefsimdsp.c), for a float64 array of
    binary32 numbers.

    The result is within 1 ulp of binary32, and 0 below -104. The method is e^x = 2^q (1 + (s + s^2
    p(s))) with q = round(x log2 e) and a polynomial p of degree 5.
    """
    xp = ops.xp
    z = xp.fmin(xp.fmax(x, -200.0), 200.0)  # a number for NaN too
    q = xp.rint(ops.round(ops.multiply(z, LOG2_E), BINARY32, None))
    s = fma(ops, q, -LN_2[1], fma(ops, q, -LN_2[0], z))
    u = xp.full_like(s, TERMS[0])
    for c in TERMS[1:]:
        u = fma(ops, u, s, c)
    u = fma(ops, ops.round(ops.multiply(s, s), BINARY32, None), u, s)
    u = ops.round(1.0 + u, BINARY32, None)
    y = ops.multiply(u, ops.from_bits((q.astype(np.int64) + 1023) << 52))
    y = xp.where(x < -104.0, 0.0, ops.round(y, BINARY32, None))
    return xp.where(xp.isnan(x), math.nan, y)
