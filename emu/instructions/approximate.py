"""Approximate instructions of a Hopper GPU, and CUDA's expf, bit for bit.

The instructions are `ex2.approx.ftz.f32`, `lg2.approx.ftz.f32` and `rcp.approx.ftz.f32`. Each is a
quadratic interpolation in integers. The leading 6 or 7 fraction bits of the argument choose three
coefficients c0, c1 and c2. With t the remaining fraction bits and s a fixed shift, the result is::

    c0 2^s + c1 t + c2 square(t) + bias, shifted right

square(t) is a product that leaves out the low bits of its partial products, and bias is not quite
one half. The special function unit of NVIDIA's first unified GPUs has this form, as the envytools
project (nvhw/sfu.c) found. The coefficients were derived from results on an H200, and so were two
other facts: the argument of ex2 is cut to a multiple of 2^-23, and negative fractions are
complemented bit by bit. For each instruction the model was compared with an H200 on all 2^32
arguments (`python -m tests.checks.gpu_instructions`).
"""

import math
from functools import cache
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.coefficients import EX2, LG2, RCP
from roundscope.emu.roundings.modes import BINARY32

FRACTION = (1 << 23) - 1
LEAST = 2.0**-126  # smaller results and arguments are flushed to zero
BEYOND = 2.0**128


def ex2(ops: Ops, x: Array) -> Array:
    """Return 2^x as the instruction ex2 gives it, for a float64 array of binary32 numbers.

    The result is within 2 ulps of binary32 [PTX ISA, ex2], and exact for whole x. Results below
    2^-126 are 0.
    """
    xp = ops.xp
    size = xp.fmin(xp.abs(x), 256.0)  # a number for NaN too
    fixed = xp.floor(size * (FRACTION + 1.0)).astype(np.int64)
    whole = (fixed & FRACTION) == 0
    fixed = xp.where(x < 0.0, xp.where(whole, -fixed, -fixed - 1), fixed)
    total = interpolated(xp, EX2, (fixed >> 17) & 63, fixed & 0x1FFFF, 13, 0x77E2) >> 15
    y = _scaled(ops, total, (fixed >> 23) - 23)
    y = xp.where(y < LEAST, 0.0, xp.where(y >= BEYOND, math.inf, y))
    return xp.where(xp.isnan(x), math.nan, y)


def expf(ops: Ops, x: Array) -> Array:
    """Return e^x as CUDA's function expf gives it, for a float64 array of binary32 numbers.

    The result is within 2 ulps of binary32. A saturated multiply-add computes n = round(x log2 e),
    and two more multiply-adds compute r = x log2 e - n. The result is 2^r, given by `ex2`, times
    2^n. No other form was found that gives the softmax of PyTorch and XLA bit for bit.
    """
    xp = ops.xp
    z = xp.fmin(xp.fmax(x, -200.0), 200.0)
    t = fma(ops, z, float.fromhex("0x1.77313ap-8"), 0.5)
    n = xp.floor(xp.fmin(xp.fmax(t, 0.0), 1.0) * 252.0) - 126.0
    r = fma(ops, z, float.fromhex("0x1.715476p+0"), -n)
    r = fma(ops, z, float.fromhex("0x1.4ae0c0p-26"), r)
    y = ops.round(
        ops.multiply(ex2(ops, r), ops.from_bits((n.astype(np.int64) + 1023) << 52)), BINARY32, None
    )
    return xp.where(xp.isnan(x), math.nan, y)


def fma(ops: Ops, x: Array, y: Any, z: Any) -> Array:
    """Return x y + z, rounded once to binary32."""
    product = ops.multiply(x, y)
    return ops.round(ops.odd_sum(product, ops.xp.full_like(product, z)), BINARY32, None)


def lg2(ops: Ops, x: Array) -> Array:
    """Return log2(x) as the instruction lg2 gives it, for a float64 array of binary32 numbers.

    The result is -inf for magnitudes below 2^-126 and NaN for other negative numbers. At 2^-n its
    magnitude is a little smaller than n.
    """
    xp = ops.xp
    b = ops.bits(x)
    exponent = ((b >> 52) & 0x7FF) - 1023
    fraction = (b >> 29) & FRACTION
    t = fraction & 0x1FFFF
    total = interpolated(xp, LG2, fraction >> 17, t, 12, 0x3345, square(t) << 1) >> 2
    total = xp.where((fraction == 0) & (exponent == 0), 0, total) + (exponent << 36)
    size = _cut(ops, xp.where(total < 0, ~total, total).astype(np.float64) * 2.0**-36)
    y = xp.where(total < 0, -size, size)
    y = xp.where(x < LEAST, -math.inf, xp.where(x == math.inf, math.inf, y))
    return xp.where((x <= -LEAST) | xp.isnan(x), math.nan, y)


def rcp(ops: Ops, x: Array) -> Array:
    """Return 1 / x as the instruction rcp gives it, for a float64 array of binary32 numbers.

    The result is within 1 ulp of binary32, and infinite for magnitudes below 2^-126.
    """
    xp = ops.xp
    b = ops.bits(x)
    exponent = ((b >> 52) & 0x7FF) - 1023
    fraction = (b >> 29) & FRACTION
    t = fraction & 0xFFFF
    total = interpolated(xp, RCP, fraction >> 16, t, 13, 0x47E7, square(t << 1)) >> 15
    size = _scaled(ops, xp.where(fraction == 0, 1 << 24, total), -exponent - 24)
    size = xp.where(size < LEAST, 0.0, size)
    size = xp.where(xp.abs(x) < LEAST, math.inf, xp.where(xp.abs(x) == math.inf, 0.0, size))
    return xp.where(xp.isnan(x), math.nan, xp.where(b < 0, -size, size))


def interpolated(
    xp: Any,
    table: tuple[Any, ...],
    interval: Array,
    t: Array,
    shift: int,
    bias: int,
    squared: Array | None = None,
) -> Array:
    """Return c0 2^shift + c1 t + c2 square(t) + bias, where c0, c1, c2 are those of an interval."""
    c0, c1, c2 = (xp.asarray(column)[interval] for column in _columns(table))
    return (c0 << shift) + c1 * t + c2 * (square(t) if squared is None else squared) + bias


@cache
def _columns(table: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Return the columns of a table of coefficients as arrays."""
    return tuple(np.array(column, np.int64) for column in zip(*table, strict=True))


def square(t: Array) -> Array:
    """Return about t^2 2^-19 for 17-bit integers t.

    The partial product of each bit is cut at 2^18 before the partial products are added.
    """
    total = 0
    for bit in range(1, 17):
        total = total + (((t >> bit) & 1) * (t >> (18 - bit)))
    return total >> 1


def _scaled(ops: Ops, total: Array, exponent: Array) -> Array:
    """Return total 2^exponent, exactly, for positive integers `total` of up to 25 bits."""
    return total.astype(np.float64) * ops.from_bits((exponent + 1023) << 52)


def _cut(ops: Ops, y: Array) -> Array:
    """Return float64 numbers cut to 24 significand bits."""
    return ops.from_bits(ops.bits(y) & ~np.int64((1 << 29) - 1))
