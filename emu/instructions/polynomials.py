"""Functions by polynomials in multiply-adds of binary32, bit for bit: logf, log2f, tanhf, poly_ex2.

logf, log2f and tanhf are those of CUDA's library. The constants and the order of the steps are
those of the PTX that nvcc 13.0 emits for the logarithms, and Triton 3.6.0 for `libdevice.tanh`.
With logf, every logarithm L of a softmax sum in memory-efficient attention that was recorded on an
H200 is reproduced; with log2f, the gradients of flex attention are equal to the bit; with tanhf,
the outputs of flex attention and of Gemma 2's eager attention with a softcap.

poly_ex2 is 2^x without ex2, as in some columns of FlashAttention-4: `ex2_emulation` with `POLY_EX2`
of degree 3 in flash_attn/cute/utils.py of Dao-AILab/flash-attention at 0251105.
"""

import math
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.approximate import LEAST, ex2, fma, rcp
from roundscope.emu.roundings.modes import BINARY32

LN_2 = float.fromhex("0x1.62e430p-1")  # binary32(ln 2)
LOG2_E = float.fromhex("0x1.715476p+0")  # binary32(log2 e)
# the bits of the binary32 numbers at which the interval of 1 + f begins
TWO_THIRDS = 0x3F2AAAAB
ROOT_HALF = 0x3F3504F3
REBIASED = (1023 - 127) << 23  # the difference between the biases of binary64 and binary32


def _numbers(words: str) -> tuple[float, ...]:
    return tuple(map(float.fromhex, words.split()))


# coefficients of polynomials, that of the highest power first
NATURAL = _numbers(
    "-0x1.0aa04ep-3 0x1.2073ecp-3 -0x1.f19b98p-4 0x1.1e52aap-3 -0x1.55b172p-3"
    " 0x1.99da16p-3 -0x1.fffe44p-3 0x1.5554f0p-2 -0x1p-1"
)
BINARY = _numbers(
    "0x1.8d64fep-4 -0x1.58fe60p-3 0x1.5f9e54p-3 -0x1.6e9c86p-3 0x1.a417e8p-3"
    " -0x1.ec7916p-3 0x1.277f32p-2 -0x1.715492p-2 0x1.ec7094p-2 -0x1.715476p-1"
)
TANH = _numbers("0x1.01e104p-6 -0x1.ac795cp-5 0x1.10b282p-3 -0x1.5553dap-2 0x0p+0")
POWER = (
    0.077119089663028717041015625,
    0.227564394474029541015625,
    0.695146143436431884765625,
    1.0,
)


def _polynomial(ops: Ops, coefficients: tuple[float, ...], x: Array) -> Array:
    y = ops.xp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = fma(ops, y, x, c)
    return y


def logf(ops: Ops, x: Array) -> Array:
    """Return ln x as CUDA's logf gives it, for a float64 array of binary32 numbers.

    The result is within 1 ulp of binary32. It is -inf at 0 and NaN for negative numbers. The method
    is ln x = k ln 2 + (f + f^2 p(f)), with 1 + f in [2/3, 4/3) and a polynomial p of degree 8.
    """
    k, f = _parts(ops, x, TWO_THIRDS)
    p = ops.round(ops.multiply(_polynomial(ops, NATURAL, f), f), BINARY32, None)
    return _with_specials(ops.xp, x, fma(ops, k, LN_2, fma(ops, p, f, f)))


def log2f(ops: Ops, x: Array) -> Array:
    """Return log2 x as CUDA's log2f gives it, for a float64 array of binary32 numbers.

    The result is within 1 ulp of binary32. It is -inf at 0 and NaN for negative numbers. The method
    is log2 x = k + (f log2 e + f^2 p(f)), with 1 + f in [sqrt(1/2), sqrt 2) and a polynomial p of
    degree 9.
    """
    k, f = _parts(ops, x, ROOT_HALF)
    p = _polynomial(ops, BINARY, f)
    for _ in range(2):
        p = ops.round(ops.multiply(p, f), BINARY32, None)
    return _with_specials(ops.xp, x, ops.round(k + fma(ops, f, LOG2_E, p), BINARY32, None))


def _parts(ops: Ops, x: Array, begin: int) -> tuple[Array, Array]:
    """Return k and f with x = 2^k (1 + f), both exact.

    1 + f lies between the number whose binary32 bits are `begin` and twice that number.
    """
    is_small = x < LEAST
    word = (ops.bits(ops.xp.where(is_small, x * 2.0**23, x)) >> 29) - REBIASED
    k = (word - begin) >> 23
    return (
        k.astype(np.float64) - ops.xp.where(is_small, 23.0, 0.0),
        ops.from_bits((word - (k << 23) + REBIASED) << 29) - 1.0,
    )


def _with_specials(xp: Any, x: Array, y: Array) -> Array:
    y = xp.where(x == 0.0, -math.inf, xp.where(x == math.inf, math.inf, y))
    return xp.where((x < 0.0) | xp.isnan(x), math.nan, y)


NEAR = float.fromhex("0x1.333334p-1")  # binary32(0.6), below which the polynomial is used
ONE_FROM = float.fromhex("0x1.205968p+3")  # from here on, the result is 1
TWO_LOG2_E = float.fromhex("0x1.715476p+1")


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
    p = _polynomial(ops, TANH, square)
    power = ex2(ops, ops.round(ops.multiply(size, TWO_LOG2_E), BINARY32, None))
    far = fma(ops, rcp(ops, ops.round(power + 1.0, BINARY32, None)), -2.0, 1.0)
    far = xp.where(size >= ONE_FROM, 1.0, far)
    y = xp.where(size < NEAR, fma(ops, p, small, small), xp.where(x < 0.0, -far, far))
    # tanh of -0 is -0, but the polynomial's sum gives +0 there
    return xp.where(xp.isnan(x), math.nan, xp.where(x == 0.0, x, y))


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
    p = _polynomial(ops, POWER, fraction)
    power = ops.from_bits((xp.fmax(whole, -126.0).astype(np.int64) + 1023) << 52)
    y = ops.multiply(xp.where(whole < -126.0, p - 1.0, p), power)
    return xp.where(xp.isnan(x), math.nan, xp.where(x >= HIGHEST, math.inf, y))
