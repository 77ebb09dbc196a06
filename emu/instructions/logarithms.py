"""logf and log2f of CUDA's library, bit for bit: polynomials in multiply-adds of binary32.

The argument is written as x = 2^k (1 + f). The constants and the order of the steps are those of
the PTX that nvcc 13.0 emits for the two functions. With logf, every logarithm L of a softmax sum in
memory-efficient attention that was recorded on an H200 is reproduced. With log2f, the gradients of
flex attention are equal to the bit.
"""

import math
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.approximate import LEAST, fma
from roundscope.emu.roundings.modes import BINARY32

LN_2 = float.fromhex("0x1.62e430p-1")  # binary32(ln 2)
LOG2_E = float.fromhex("0x1.715476p+0")  # binary32(log2 e)
# the bits of the binary32 numbers at which the interval of 1 + f begins
TWO_THIRDS = 0x3F2AAAAB
ROOT_HALF = 0x3F3504F3
REBIASED = (1023 - 127) << 23  # the difference between the biases of binary64 and binary32

NATURAL = tuple(
    float.fromhex(word)
    for word in (
        "-0x1.0aa04ep-3",
        "0x1.2073ecp-3",
        "-0x1.f19b98p-4",
        "0x1.1e52aap-3",
        "-0x1.55b172p-3",
        "0x1.99da16p-3",
        "-0x1.fffe44p-3",
        "0x1.5554f0p-2",
        "-0x1p-1",
    )
)
BINARY = tuple(
    float.fromhex(word)
    for word in (
        "0x1.8d64fep-4",
        "-0x1.58fe60p-3",
        "0x1.5f9e54p-3",
        "-0x1.6e9c86p-3",
        "0x1.a417e8p-3",
        "-0x1.ec7916p-3",
        "0x1.277f32p-2",
        "-0x1.715492p-2",
        "0x1.ec7094p-2",
        "-0x1.715476p-1",
    )
)


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


def _polynomial(ops: Ops, coefficients: tuple[float, ...], x: Array) -> Array:
    y = ops.xp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = fma(ops, y, x, c)
    return y


def _with_specials(xp: Any, x: Array, y: Array) -> Array:
    y = xp.where(x == 0.0, -math.inf, xp.where(x == math.inf, math.inf, y))
    return xp.where((x < 0.0) | xp.isnan(x), math.nan, y)
