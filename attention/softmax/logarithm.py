"""L = m + ln l, the logarithm of a row's sum of exponentials.

The module also has the weights by which kernels combine the results of a row whose keys were split
over several thread blocks of a GPU. They are computed from the L of each split.
"""

import math

import numpy as np

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import Log2E, Logarithm
from roundscope.attention.sites import Site
from roundscope.attention.softmax.exponents import LOG2_E32, base2_scale
from roundscope.attention.softmax.maximum import finite
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.functions import LOG2_E, log64
from roundscope.emu.instructions.approximate import expf, lg2
from roundscope.emu.instructions.polynomials import LN_2, log2f, logf
from roundscope.emu.roundings.modes import BINARY32


def log_sum_exp(at: Events, scale: float, m: Array, l: Array) -> Array:
    """Return L = m + ln l, (rows,), before the event LSE.

    L has the units of the scaled scores. In plans with `lse_base2` the result is m + log2 l, in
    base 2. For rows without a key, where m is -inf and l is 0, it is -inf. FlashAttention-2 (log2_e
    maximum, log lg2) stores inf where l is NaN, of which the backward makes P = 0
    (csrc/flash_attn/src/softmax.h, `normalize_softmax_lse`); splits of the keys do not.
    FlashAttention-3 (lg2-factor, hopper/softmax.h) and -4 (lg2-sum, flash_attn/cute/softmax.py)
    store -inf there, for which the backward takes 0 (`finalize`).

    scale  the factor by which m is multiplied in plans where m is the maximum of unscaled scores
    m, l   the maximum and the row sum after the last tile, (rows,)
    """
    ops, plan = at.ops, at.plan
    m = finite(ops.xp, m)
    if plan.offset:
        l = ops.multiply(l, 2.0**-plan.offset)
    if plan.kept_state:
        m = at(Site.MS, m)
    if plan.lse_base2:
        log2 = (
            ops.call(log2f, ops.round(l, BINARY32, None))
            if plan.log is Logarithm.CUDA
            else ops.multiply(ops.call(log64, l), LOG2_E)
        )
        return m + at(Site.LN, log2)
    if plan.log is Logarithm.LG2_SUM:
        if plan.log2_e is Log2E.MAXIMUM:
            m = ops.multiply(m, base2_scale(ops, plan, scale))
        log2 = ops.call(lg2, ops.round(l, BINARY32, None))
        lse = ops.multiply(at(Site.LN, ops.odd_sum(m, log2)), LN_2)
        return ops.xp.where(l == l, lse, -math.inf)
    if plan.log in (Logarithm.LG2, Logarithm.LG2_FACTOR):
        log2 = ops.call(lg2, ops.round(l, BINARY32, None))
        ln_l = at(Site.LN, ops.multiply(log2, LN_2))
    elif plan.log is Logarithm.CUDA:
        ln_l = ops.call(logf, ops.round(l, BINARY32, None))
    else:
        ln_l = ops.call(log64, l)
    if plan.log2_e is Log2E.NONE:
        return m + (at(Site.LN, ln_l) if plan.kept_state else ln_l)
    if plan.log2_e is Log2E.MAXIMUM:
        if plan.log is Logarithm.LG2_FACTOR:
            scale = _natural(ops, base2_scale(ops, plan, scale))
        lse = ops.odd_sum(ops.multiply(m, scale), ln_l)
        if plan.log is Logarithm.LG2_FACTOR:
            lse = ops.xp.where(l == l, lse, -math.inf)
        elif plan.log is Logarithm.LG2 and not plan.split_tiles:
            lse = ops.xp.where(l == l, lse, math.inf)
        return lse
    if plan.log2_e is Log2E.SCORES:
        natural = ops.round(ops.divide(m, ops.xp.full_like(m, LOG2_E32)), BINARY32, None)
        return natural + at(Site.LN, ln_l)
    return ops.odd_sum(ops.multiply(m, LN_2), ln_l)


def _natural(ops: Ops, c: Array | float) -> Array | float:
    """Return binary32(c ln 2), the factor of m in base e."""
    if isinstance(c, (int, float)):
        return float(np.float32(c * LN_2))
    return ops.round(ops.multiply(c, LN_2), BINARY32, None)


def natural_maximum(at: Events, scale: float, m: Array) -> Array:
    """Return m in the units of the scaled scores in base e, not rounded yet; 0 where m is -inf.

    scale: the factor by which m is multiplied in plans where m is the maximum of unscaled scores
    """
    m = finite(at.ops.xp, m)
    if at.plan.log2_e is Log2E.NONE:
        return m
    return at.ops.multiply(m, scale if at.plan.log2_e is Log2E.MAXIMUM else LN_2)


def combined_lse(ops: Ops, lse: Array) -> Array:
    """Return L of whole rows, ln sum_i exp(L_i), (rows,), from the L_i of the splits of the keys.

    It is M + logf(sum_i expf(L_i - M)), where M is the largest L_i. The sum is pairwise: the second
    half of the terms is added to the first half until one term is left, and each addition is
    rounded to binary32. The addition of M is not rounded yet.

    lse: the L_i, (splits, rows).
    """
    xp = ops.xp
    highest = finite(xp, xp.max(lse, axis=0))
    terms = weight(ops, lse - highest)
    size = 1 << (terms.shape[0] - 1).bit_length()
    terms = xp.concatenate([terms, xp.zeros((size - terms.shape[0], *terms.shape[1:]))])
    while (half := terms.shape[0] // 2) > 0:
        terms = ops.round(terms[:half] + terms[half:], BINARY32, None)
    return highest + ops.call(logf, terms[0])


def weight(ops: Ops, x: Array) -> Array:
    """Return expf(x) for a difference x of logarithms, after x is rounded to binary32."""
    return ops.call(expf, ops.round(x, BINARY32, None))
