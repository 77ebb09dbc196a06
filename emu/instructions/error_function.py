"""erf as CUDA's library and PyTorch's vectors on a CPU have it, bit for bit, and erf to binary64.

The constants and the order of the steps of erff are those of the PTX that NVRTC 13.0 emits for it,
and Triton 3.6.0 for `libdevice.erf`.
"""

import math
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.functions import exp64
from roundscope.emu.instructions.approximate import ex2
from roundscope.emu.instructions.onednn import ERF, ERF_P, binary32
from roundscope.emu.instructions.sleef import sleef_expf
from roundscope.emu.instructions.steps import Steps

NEAR = binary32("38b1e96a ba574d20 3baad5ea bcdc1be7 3de718af bec093ac 3e0375d3")
FAR = binary32("38eb4c3a baae005b 3c09919f bd24d99a 3e235519 3f69b4f9 3f210a14")
FAR_OF_LIBDEVICE = binary32("3789ca3c b9f560b9 3bac840b bd0c8162 3e1cf906 3f6a937e 3f20d842")
FAR_FROM = float(binary32("3f8060fe")[0])


def erf_by_vectors(ops: Ops, x: Array) -> Array:
    """Return erf x as PyTorch's vectors of float32 have it (ATen/cpu/vec/vec512/vec512_float.h),
    for a float64 array of binary32 numbers.

    It is formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7, but not relative to
    a small erf x.
    """
    power = sleef_expf(ops, -Steps(ops).multiply(x, x))
    return erf_of_power(ops, x, power)


def erf_of_power(ops: Ops, x: Array, power: Array) -> Array:
    """Return erf x by the same formula, for numbers of which e^(-x^2) is known."""
    do, xp, size = Steps(ops), ops.xp, ops.xp.abs(x)
    t = do.divide(xp.ones_like(x), do.fma(size, ERF_P, 1.0))
    y = do.fma(do.multiply(-power, t), do.polynomial(t, ERF), 1.0)
    return xp.where(x < 0.0, -y, y)


def erff(ops: Ops, x: Array) -> Array:
    """Return erf x as CUDA's erff gives it, for a float64 array of binary32 numbers.

    For |x| below 1.003 it is x + x p(x^2) with a polynomial p of degree 6, elsewhere 1 - 2^(-|x| -
    |x| q(|x|)) with another one.
    """
    return _erff(ops, x, FAR)


def erff_of_libdevice(ops: Ops, x: Array) -> Array:
    """Return erf x as `libdevice.erf` of Triton 3.6 gives it, with other coefficients of q."""
    return _erff(ops, x, FAR_OF_LIBDEVICE)


def _erff(ops: Ops, x: Array, coefficients: np.ndarray) -> Array:
    do, xp, size = Steps(ops), ops.xp, ops.xp.abs(x)
    is_far = size >= FAR_FROM
    small = xp.where(is_far, 0.0, x)
    near = do.fma(do.polynomial(do.multiply(small, small), NEAR), small, small)
    large = xp.fmin(xp.where(is_far, size, FAR_FROM), 16.0)
    far = do.add(-ex2(ops, do.fma(do.polynomial(large, coefficients), -large, -large)), 1.0)
    y = xp.where(is_far, xp.where(x < 0.0, -far, far), near)
    return xp.where(xp.isnan(x), math.nan, xp.where(x == 0.0, x, y))


TERMS = np.array([2.0 / (2 * n + 1) for n in range(50, 0, -1)])
FRACTIONS = np.array([n / 2.0 for n in range(40, 0, -1)])


def erf64(ops: Ops, x: Array) -> Array:
    """Return erf x of a float64 array, within some units in the last place.

    Below 2.5 it is the series 2 / sqrt(pi) e^(-x^2) x (1 + 2 x^2 / 3 + (2 x^2)^2 / (3 5) + ...),
    of which all terms have one sign; above it is 1 - erfc x with Laplace's continued fraction.
    """
    xp, mul = ops.xp, ops.multiply
    size = xp.fmin(xp.abs(x), 7.0)
    power = ops.call(exp64, -mul(size, size))
    small, large = xp.fmin(size, 2.5), xp.fmax(size, 2.5)
    squared = mul(small, small)

    def term(series: Array, _: Any, own: tuple[Array]) -> tuple[Array, None]:
        return mul(mul(squared, series), own[0]) + 1.0, None

    def part(fraction: Array, _: Any, own: tuple[Array]) -> tuple[Array, None]:
        return large + ops.divide(xp.broadcast_to(own[0], large.shape), fraction), None

    series = ops.scan(term, xp.ones_like(x), (xp.asarray(TERMS),))[0]
    near = mul(mul(mul(small, power), series), 2.0 / math.sqrt(math.pi))
    fraction = ops.scan(part, large, (xp.asarray(FRACTIONS),))[0]
    far = 1.0 - ops.divide(mul(power, 1.0 / math.sqrt(math.pi)), fraction)
    y = xp.where(size < 2.5, near, far)
    return xp.where(xp.isnan(x), math.nan, xp.copysign(y, x))
