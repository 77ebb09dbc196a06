"""tanhf of CUDA's library, bit for bit: a polynomial near 0, and `ex2` and `rcp` elsewhere.

The constants and the order of the steps are those of the PTX that Triton 3.6.0 emits for
`libdevice.tanh`. The outputs of flex attention and of Gemma 2's eager attention with a softcap,
recorded on an H200, are equal to the bit with it.
"""

import math

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.approximate import ex2, fma, rcp
from roundscope.emu.roundings.modes import BINARY32

NEAR = float.fromhex("0x1.333334p-1")  # binary32(0.6), below which the polynomial is used
ONE_FROM = float.fromhex("0x1.205968p+3")  # from here on, the result is 1
TWO_LOG2_E = float.fromhex("0x1.715476p+1")
TERMS = tuple(
    float.fromhex(word)
    for word in ("0x1.01e104p-6", "-0x1.ac795cp-5", "0x1.10b282p-3", "-0x1.5553dap-2", "0x0p+0")
)


def tanhf(ops: Ops, x: Array) -> Array:
    """Return tanh x as CUDA's tanhf gives it, for a float64 array of binary32 numbers.

    The result is within 2 ulps of binary32, and equal to that of an H200 for all 2^32 arguments.
    For |x| below 0.6 it is x + x^3 p(x^2) with a polynomial p of degree 3. Elsewhere it is 1 - 2 /
    (1 + 2^(2 log2 e |x|)) with the sign of x.
    """
    xp = ops.xp
    size = xp.fmin(xp.abs(x), 16.0)
    small = xp.where(size < NEAR, x, 0.0)
    square = ops.round(ops.multiply(small, small), BINARY32, None)
    p = fma(ops, xp.full_like(square, TERMS[0]), square, TERMS[1])
    for term in TERMS[2:]:
        p = fma(ops, p, square, term)
    power = ex2(ops, ops.round(ops.multiply(size, TWO_LOG2_E), BINARY32, None))
    far = fma(ops, rcp(ops, ops.round(power + 1.0, BINARY32, None)), -2.0, 1.0)
    far = xp.where(size >= ONE_FROM, 1.0, far)
    y = xp.where(size < NEAR, fma(ops, p, small, small), xp.where(x < 0.0, -far, far))
    # tanh of -0 is -0, but the polynomial's sum gives +0 there
    return xp.where(xp.isnan(x), math.nan, xp.where(x == 0.0, x, y))
