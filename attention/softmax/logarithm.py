"""L = m + ln l, the logarithm of a row's sum of exponentials.

It also combines rows whose keys were split over blocks of a GPU: each part is weighted by it.
"""

from roundscope.attention.events.hook import Events
from roundscope.attention.plans.choices import Log2E, Logarithm
from roundscope.attention.sites import Site
from roundscope.attention.softmax.exponents import LOG2_E32
from roundscope.attention.softmax.maximum import finite
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.functions import LOG2_E, log64
from roundscope.emu.instructions.approximate import expf, lg2
from roundscope.emu.instructions.logarithms import LN_2, log2f, logf
from roundscope.emu.roundings.modes import BINARY32


def log_sum_exp(at: Events, scale: float, m: Array, l: Array) -> Array:
    """Return L = m + ln l (rows,) in the units of scale S, before the event LSE.

    In plans with `lse_base2` it is m + log2 l instead, in base 2. Rows without a key, where m is
    -inf and l is 0, give -inf.

    scale  of m where m is unscaled
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
    if plan.log is Logarithm.LG2:
        log2 = ops.call(lg2, ops.round(l, BINARY32, None))
        ln_l = at(Site.LN, ops.multiply(log2, LN_2))
    elif plan.log is Logarithm.CUDA:
        ln_l = ops.call(logf, ops.round(l, BINARY32, None))
    else:
        ln_l = ops.call(log64, l)
    if plan.log2_e is Log2E.NONE:
        return m + (at(Site.LN, ln_l) if plan.kept_state else ln_l)
    if plan.log2_e is Log2E.MAXIMUM:
        return ops.odd_sum(ops.multiply(m, scale), ln_l)
    if plan.log2_e is Log2E.SCORES:
        natural = ops.round(ops.divide(m, ops.xp.full_like(m, LOG2_E32)), BINARY32, None)
        return natural + at(Site.LN, ln_l)
    return ops.odd_sum(ops.multiply(m, LN_2), ln_l)


def combined_lse(ops: Ops, lse: Array) -> Array:
    """Return ln sum_i exp(L_i), (rows,), of the L_i of splits, (splits, rows).

    It is M + logf(sum_i expf(L_i - M)) with the largest L_i as M. The sum is by halves, and each of
    its additions is rounded to binary32; the last addition, of M, is not rounded yet.
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
    """Return expf of a difference of logarithms x, which is rounded to binary32 first."""
    return ops.call(expf, ops.round(x, BINARY32, None))
