"""Functions of the library Sleef, which PyTorch's vectorized kernels on a CPU call, bit for bit.

They are written with the multiply-adds that AVX2 and AVX-512 have. torch.exp of an array without
gaps calls another library.
"""

import math

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.approximate import fma
from roundscope.emu.instructions.steps import Steps
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


REAL_EXP = tuple(
    float(np.float32(c))
    for c in (0.1980960224e-3, 0.1394256484e-2, 0.8333456703e-2, 0.4166637361e-1)
)
SIXTH = float(np.float32(0.166666659414234244790680580464))
Pair = tuple[Array, Array]  # a number and what it misses, both in binary32


def sleef_tanhf(ops: Ops, x: Array) -> Array:
    """Return tanh x as Sleef_tanhf_u10 gives it (src/libm/sleefsimdsp.c), for a float64 array of
    binary32 numbers.

    The result is within 1 ulp of binary32, and 1 from 8.66 on. The method is (e^x - e^-x) / (e^x +
    e^-x) for |x|, in pairs of binary32 numbers.
    """
    do, xp = _Pairs(ops), ops.xp
    size = xp.fmin(xp.abs(x), 16.0)  # a number for NaN too
    d = do.exp(size)
    e = do.reciprocal(d)
    y = do.divide(do.sum_of_larger(d, (-e[0], -e[1])), do.sum_of_larger(d, e))
    y = do.steps.add(*y)
    y = xp.where(size > float(np.float32(8.664339742)), 1.0, y)
    return xp.where(xp.isnan(x), math.nan, xp.copysign(y, x))


class _Pairs:
    """Arithmetic on pairs, with the steps of Sleef's where the processor has multiply-adds."""

    def __init__(self, ops: Ops) -> None:
        self.ops, self.steps = ops, Steps(ops)

    def plus(self, x: Pair, y: Array) -> Pair:
        """Return a pair plus a number of any size."""
        add = self.steps.add
        s = add(x[0], y)
        v = add(s, -x[0])
        return s, add(add(add(x[0], -add(s, -v)), add(y, -v)), x[1])

    def sum(self, x: Pair, y: Pair) -> Pair:
        """Return the sum of two pairs of any size."""
        add = self.steps.add
        s = add(x[0], y[0])
        v = add(s, -x[0])
        return s, add(add(add(x[0], -add(s, -v)), add(y[0], -v)), add(x[1], y[1]))

    def sum_of_larger(self, x: Pair, y: Pair) -> Pair:
        """Return the sum of two pairs of which the first is the larger one."""
        add = self.steps.add
        s = add(x[0], y[0])
        return s, add(add(add(add(x[0], -s), y[0]), x[1]), y[1])

    def times(self, x: Pair, y: Pair) -> Pair:
        do = self.steps
        s = do.multiply(x[0], y[0])
        return s, do.fma(x[0], y[1], do.fma(x[1], y[0], do.fma(x[0], y[0], -s)))

    def reciprocal(self, d: Pair) -> Pair:
        do = self.steps
        s = do.divide(self.ops.xp.ones_like(d[0]), d[0])
        return s, do.multiply(s, do.fma(-d[1], s, do.fma(-d[0], s, 1.0)))

    def divide(self, n: Pair, d: Pair) -> Pair:
        do = self.steps
        t = do.divide(self.ops.xp.ones_like(d[0]), d[0])
        s = do.multiply(n[0], t)
        rest = do.fma(-d[1], t, do.fma(-d[0], t, 1.0))
        return s, do.fma(s, rest, do.fma(n[1], t, do.fma(t, n[0], -s)))

    def exp(self, x: Array) -> Pair:
        """Return e^x of numbers from 0 to 16."""
        do, zero = self.steps, self.ops.xp.zeros_like(x)
        q = self.ops.xp.rint(do.multiply(x, LOG2_E))
        s: Pair = (x, zero)
        for part in LN_2:
            s = self.plus(s, do.multiply(q, -part))
        u = do.polynomial(s[0], REAL_EXP)
        first = do.multiply(s[0], u)
        t = self.plus((first, do.fma(s[1], u, do.fma(s[0], u, -first))), zero + SIXTH)
        t = self.plus(self.times(s, t), zero + 0.5)
        first = do.multiply(s[0], s[0])
        squared = first, do.fma(do.add(s[0], s[0]), s[1], do.fma(s[0], s[0], -first))
        t = self.sum(s, self.times(squared, t))
        whole = do.add(zero + 1.0, t[0])
        rest = do.add(do.add(do.add(zero + 1.0, -whole), t[0]), t[1])
        power = self.ops.from_bits((q.astype(np.int64) + 1023) << 52)
        return self.ops.multiply(whole, power), self.ops.multiply(rest, power)
