"""The softmax of a tile: how scores become exponents of the plan's base, its maximum, its row sum and its logarithm.

Kernels differ here: the scale and log2 e enter before the maximum or after, the product is rounded or not, a row is
summed by one thread or by four. `Plan.log2_e` and its neighbours choose; each step is a named event.
"""

import math
from typing import Any

import numpy as np

from roundscope.attention.events.hook import Events
from roundscope.attention.plans.choices import BackwardExponent, Exponential, Log2E, Logarithm, Reciprocal, RowSum, Stabiliser
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.functions import LOG2_E, exp2_64, exp64, log64
from roundscope.emu.instructions.approximate import ex2, expf, lg2, rcp
from roundscope.emu.instructions.logarithms import LN_2, log2f, logf
from roundscope.emu.rounding.modes import BINARY32

LOG2_E32 = 1.44269502162933349609375  # binary32(log2 e)
EXPONENTIALS = {Exponential.CORRECT: exp64, Exponential.CUDA: expf, Exponential.BASE2: exp2_64, Exponential.EX2: ex2}


def exponents(at: Events, scale: float, m_old: Array, s: Array) -> tuple[Array, Array, Array]:
    """The new maximum m, and the exponents of EXP (bq, bk) and of ALPHA (bq,), from the scores."""
    ops, plan, mul, xp = at.ops, at.plan, at.ops.multiply, at.ops.xp
    scale = base2_scale(plan, scale)
    if plan.log2_e is Log2E.MAXIMUM:
        s = masked(at, s)
        m = new_maximum(at, m_old, s, scale)
        cm = at(Site.CM, mul(finite(xp, m), scale))[:, None]
        scaled = at(Site.SCALED, mul(s, scale))
        x = multiply_add(at, Site.X, s, scale, cm) if plan.fused_exponent else at(Site.X, scaled - cm)
        return m, x, at(Site.DX, mul(at(Site.DM, m_old - finite(xp, m)), scale))
    scaled, factor, factors = _scaled(at, scale, s, Site.SCALED, Site.LS)
    scaled = masked(at, scaled)
    m = new_maximum(at, m_old, scaled)
    shift = finite(xp, m)
    if plan.fused_exponent:
        x = multiply_add(at, Site.X, masked(at, factors), factor, shift[:, None])
    else:
        x = at(Site.X, exponent(ops, plan, scaled - shift[:, None]))
    if plan.kept_state:  # alpha has both maxima as memory holds them
        m_old, shift = (ops.round(y, plan[Site.MS], None) for y in (m_old, shift))
    return m, x, at(Site.DM, exponent(ops, plan, m_old - shift))


def exponents_again(at: Events, scale: float, s: Array, lse: Array) -> Array:
    """The exponents of EXP_B (bq, bk), from the scores and L."""
    plan, mul = at.plan, at.ops.multiply
    if plan.exponent_again is BackwardExponent.AFTER:
        x = multiply_add(at, Site.X_B, masked(at, s), scale, lse[:, None])
        return at(Site.LS_B, mul(x, LOG2_E32))
    if plan.exponent_again is BackwardExponent.NATURAL:
        scaled = masked(at, at(Site.SCALED_B, mul(s, scale)))
        fused = plan.fused_exponent and plan.log2_e is Log2E.NONE
        return multiply_add(at, Site.X_B, masked(at, s), scale, lse[:, None]) if fused else at(Site.X_B, scaled - lse[:, None])
    scale = base2_scale(plan, scale)
    if plan.log2_e is not Log2E.NONE and not plan.lse_base2:
        lse = at(Site.LSE2, mul(lse, LOG2_E32))
    scaled, factor, factors = _scaled(at, scale, s, Site.SCALED_B, Site.LS_B)
    if not plan.fused_exponent:
        return at(Site.X_B, exponent(at.ops, plan, masked(at, scaled) - lse[:, None]))
    is_rounded = plan.exponent_again is BackwardExponent.ROUNDED_IF_CUT
    instead = (at.tile.is_cut, masked(at, scaled) - lse[:, None]) if is_rounded else None
    return multiply_add(at, Site.X_B, masked(at, factors), factor, lse[:, None], instead)


def _scaled(at: Events, scale: float, s: Array, site: Site, in_base2: Site) -> tuple[Array, float, Array]:
    """The scores in the units of the exponent, and the two factors of which they are the rounded product."""
    scaled = at(site, at.ops.multiply(s, scale))
    if at.plan.log2_e is not Log2E.SCORES:
        return scaled, scale, s
    return at(in_base2, at.ops.multiply(scaled, LOG2_E32)), LOG2_E32, scaled


def base2_scale(plan: Plan, scale: float) -> float:
    """What the scores are multiplied with: scale, or c = binary32(scale log2 e)."""
    if plan.log2_e in (Log2E.SCALE, Log2E.MAXIMUM):
        return float(np.float32(scale * LOG2_E))
    return scale


def multiply_add(
    at: Events, site: Site, x: Array, factor: float, less: Array, instead: tuple[Any, Array] | None = None
) -> Array:  # fmt: skip
    """x factor - less with the event as its only rounding: the sum before it is rounded to odd. -inf where x is.

    instead: (where, another value for the event to round)
    """
    xp = at.ops.xp
    total = at.ops.odd_sum(*xp.broadcast_arrays(at.ops.multiply(finite(xp, x), factor), -less))
    if instead is not None:
        total = xp.where(*instead, total)
    return xp.where(x == -math.inf, -math.inf, at(site, total))


def exponent(ops: Ops, plan: Plan, x: Array) -> Array:
    """The exponent of the plan's base: x, or x log2 e where exp is 2^x and the scores do not hold log2 e yet."""
    if plan.exp in (Exponential.CORRECT, Exponential.CUDA) or plan.log2_e is not Log2E.NONE:
        return x
    return ops.multiply(x, LOG2_E)


def exponential_again(at: Events, x: Array) -> Array:
    """The exponential of the backward: the forward's, but where it is natural again."""
    if at.plan.exponent_again is BackwardExponent.NATURAL:
        return at.ops.call(expf, at.ops.round(x, BINARY32, None))
    return exponential(at, x)


def inverse(at: Events, l: Array) -> Array:
    """1 / l, or 0 for rows that have no key."""
    if at.plan.reciprocal is Reciprocal.RCP:
        whole = at.ops.xp.where(l == 0.0, 1.0, l)
        return at.ops.xp.where(l == 0.0, 0.0, at.ops.call(rcp, at.ops.round(whole, BINARY32, None)))
    return reciprocal(at.ops.xp, l)


def reciprocal(xp: Any, l: Array) -> Array:
    """1 / l, or 0 for rows that have no key."""
    return xp.where(l == 0.0, 0.0, 1.0 / xp.where(l == 0.0, 1.0, l))


def exponential(at: Events, x: Array) -> Array:
    """The plan's base to the power of x."""
    if at.plan.exp in (Exponential.EX2, Exponential.CUDA):
        x = at.ops.round(x, BINARY32, None)  # the register that the instruction reads
    return at.ops.call(EXPONENTIALS[at.plan.exp], x)


def register(at: Events, site: Site, x: Array) -> Array:
    """x as a binary32 register holds it before it is cast, in plans that say so."""
    return at(site, x) if at.plan.registers else x


def masked(at: Events, s: Array) -> Array:
    """Scores that do not exist are -inf: their exp is 0, and no event counts them."""
    return s if at.tile.is_whole else at.ops.xp.where(at.tile.mask, s, -math.inf)


def finite(xp: Any, m: Array) -> Array:
    """m, or 0 for rows that have no key: -inf - -inf would be NaN."""
    return xp.where(m == -math.inf, 0.0, m)


def new_row_sum(at: Events, al: Array, e: Array) -> Array:
    """alpha l + rowsum(e): two events, or of lanes one sum each that begins at alpha l."""
    how = at.plan.row_sum
    if how is RowSum.PLAIN:
        return at(Site.L, al + row_sum(at, e))
    if how is RowSum.LANES:
        return at(Site.L, *sum_in_lanes(at, e, al, Site.L))
    if how is RowSum.TILE_LANES:
        own = at(Site.ROWSUM, *sum_in_lanes(at, e, at.ops.xp.zeros(al.shape), Site.ROWSUM))
        return at(Site.L, al + own)
    if how is RowSum.TILES:
        own, exact = sum_in_lanes(at, e, at.ops.xp.zeros((*al.shape, 4)), Site.ROWSUM)
        whole = at(Site.ROWSUM, _in_pairs(at, crossed(own)), None if exact is None else exact.sum(axis=1))
        return at(Site.L, at.ops.odd_sum(al, whole))
    l = al
    for lo in range(0, e.shape[1], 32):
        own, exact = sum_in_lanes(at, e[:, lo : lo + 32], at.ops.xp.zeros((*al.shape, 4)), Site.ROWSUM)
        l = at(Site.L, l + at(Site.ROWSUM, _in_pairs(at, own), None if exact is None else exact.sum(axis=1)))
    return l


def sum_in_lanes(at: Events, e: Array, start: Array, event: Site) -> tuple[Array, Array | None]:
    """start (bq, 4) + the columns of each lane, and the same in binary64 where an injection at the event wants it."""
    rows, columns = e.shape
    if missing := -columns % 8:
        e = at.ops.xp.concatenate([e, at.ops.xp.zeros((rows, missing))], axis=1)
        columns += missing
    lanes = e.reshape(rows, columns // 8, 4, 2).transpose(0, 2, 1, 3).reshape(rows * 4, columns // 4)
    total, exact = at.sum(Site.ROWSUM, lanes, at.ops.xp.ones((lanes.shape[1], 1)), init=start.reshape(-1, 1), event=event)
    return total.reshape(start.shape), None if exact is None else exact.reshape(start.shape)


def added_lanes(at: Events, l: Array) -> Array:
    """The sum of four lanes, as threads exchange them; its last addition is the event's."""
    return _in_pairs(at, crossed(l) if at.plan.row_sum is RowSum.LANES else l)


def crossed(l: Array) -> Array:
    """Four lanes in the order l0, l2, l1, l3, in pairs."""
    return l.reshape(-1, 2, 2).swapaxes(1, 2)


def _in_pairs(at: Events, l: Array) -> Array:
    """(l0 + l1) + (l2 + l3), the last addition not rounded yet."""
    pairs = at.ops.round(l.reshape(-1, 2, 2).sum(axis=2), at.plan[Site.LANES], None)
    return pairs.sum(axis=1)


def log_sum_exp(at: Events, scale: float, m: Array, l: Array) -> Array:
    """L = m + ln l, in the units of scale S."""
    ops, plan = at.ops, at.plan
    m = finite(ops.xp, m)
    if plan.kept_state:
        m = at(Site.MS, m)
    if plan.lse_base2:
        log2 = ops.call(log2f, ops.round(l, BINARY32, None)) if plan.log is Logarithm.CUDA else ops.multiply(ops.call(log64, l), LOG2_E)
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
    """ln sum_i exp(L_i) of (splits, rows): M + logf(sum_i expf(L_i - M)), the sum by halves, each step but the last in binary32."""
    xp = ops.xp
    highest = finite(xp, xp.max(lse, axis=0))
    terms = weight(ops, lse - highest)
    size = 1 << (terms.shape[0] - 1).bit_length()
    terms = xp.concatenate([terms, xp.zeros((size - terms.shape[0], *terms.shape[1:]))])
    while (half := terms.shape[0] // 2) > 0:
        terms = ops.round(terms[:half] + terms[half:], BINARY32, None)
    return highest + ops.call(logf, terms[0])


def weight(ops: Ops, x: Array) -> Array:
    """expf of a difference of logarithms, which rounds to binary32."""
    return ops.call(expf, ops.round(x, BINARY32, None))


def row_sum(at: Events, e: Array) -> Array:
    """sum_s e, an event and a sum of products with ones."""
    ones = at.ops.xp.ones((e.shape[1], 1))
    total, exact = at.sum(Site.ROWSUM, e, ones)
    return at(Site.ROWSUM, total.squeeze(1), None if exact is None else exact.squeeze(1))


def new_maximum(at: Events, m_old: Array, s: Array, scale: float = 1.0) -> Array:
    """max(m, rowmax S); or the old m, where it would grow by no more than the plan's threshold. scale: of m, to powers of two."""
    xp, m = at.ops.xp, at.ops.xp.maximum(m_old, row_maximum(at.ops, at.plan, s))
    if at.plan.stale_maximum:
        growth = at.ops.multiply(finite(xp, m) - finite(xp, m_old), scale)
        m = xp.where((m_old > -math.inf) & (growth <= at.plan.stale_maximum), m_old, m)
    return at(Site.M, m)


def row_maximum(ops: Ops, plan: Plan, s: Array) -> Array:
    """rowmax(S), moved by the stabiliser where several scores share it."""
    r = ops.xp.max(s, axis=1)
    return r if plan.stabiliser is None else _stabilised(ops, plan, plan.stabiliser, s, r)


def _stabilised(ops: Ops, plan: Plan, stabiliser: Stabiliser, s: Array, r: Array) -> Array:
    """m* of arXiv 2510.04212, Algorithm 1, lines 7 to 9, its shift m* - r kept where P neither rounds to 1 nor vanishes."""
    xp, p = ops.xp, plan[Site.P].format
    window = p.tie_window if stabiliser.window is None else stabiliser.window
    repeated = xp.sum(finite(xp, r)[:, None] - s <= window, axis=1) > 1
    shift = xp.where(r > 0.0, ops.multiply(r, stabiliser.beta - 1.0), -r)
    # below this P would round back to 1, or m* back to r
    least = 2.0 * xp.maximum(window, p.tie_window) + spacing(ops, xp.maximum(2.0 * xp.abs(r), window), plan[Site.M].format)
    shift = xp.minimum(xp.maximum(shift, least), -0.5 * math.log(2.0) * xp.maximum(p.emin, -126).astype("float64"))
    return xp.where(repeated & (r > -math.inf), r + shift, r)
