"""The running maximum m of a row.

In most plans it is the maximum of the scores so far. The stabilizer of arXiv 2510.04212 moves it
away from the scores. Plans with `stale_maximum` keep an old (stale) maximum as long as it would
grow by no more than a threshold.
"""

import math
from dataclasses import replace
from types import ModuleType

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import Stabilizer
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.spacing import spacing


def new_maximum(at: Events, m_old: Array, s: Array, scale: float = 1.0) -> Array:
    """Return max(m, rowmax S) after the event M, (bq,).

    In plans with `stale_maximum` the result is the old m where m would grow by no more than that
    threshold.

    s      the scores (bq, bk), masked ones -inf
    scale  the factor that turns m into an exponent of the plan's base, which is the unit of the
           threshold
    """
    xp, m = at.ops.xp, at.ops.xp.maximum(m_old, row_maximum(at.ops, at.plan, s))
    if at.plan.stale_maximum:
        growth = at.ops.multiply(finite(xp, m) - finite(xp, m_old), scale)
        m = xp.where((m_old > -math.inf) & (growth <= at.plan.stale_maximum), m_old, m)
    return at(Site.M, m)


def less_maximum(at: Events, ds: Array, x: Array, of_sink: Array | None) -> Array:
    """Return DSM, which is dS minus the gradient of the maximum m.

    That gradient is DMAX, the row sum of dS. It is subtracted at the first key whose exponent is 0,
    or at no key if m is a sink.

    ds       (bq, bk)
    x        the exponents, (bq, bk), -inf at masked scores
    of_sink  dS of the sink, (bq,), which is part of the sum; None without sinks
    """
    ops, xp = at.ops, at.ops.xp
    columns = ds if of_sink is None else xp.concatenate([ds, of_sink[:, None]], axis=1)
    adding = replace(at, recorder=None)  # a trace counts DELTA's steps once
    total, exact = adding.sum(Site.DELTA, columns, xp.ones((columns.shape[1], 1)), event=Site.DMAX)
    dmax = at(Site.DMAX, total.squeeze(1), None if exact is None else exact.squeeze(1))
    is_first = (xp.arange(x.shape[1]) == xp.argmax(x, axis=1)[:, None]) & (x == 0.0)
    return at(Site.DSM, ops.odd_sum(ds, xp.where(is_first, -dmax[:, None], 0.0)))


def row_maximum(ops: Ops, plan: Plan, s: Array) -> Array:
    """Return rowmax(S), (bq,), moved by the stabilizer where several scores equal it."""
    r = ops.xp.max(s, axis=1)
    return r if plan.stabiliser is None else _stabilized(ops, plan, plan.stabiliser, s, r)


def _stabilized(ops: Ops, plan: Plan, stabilizer: Stabilizer, s: Array, r: Array) -> Array:
    """Return m* of arXiv 2510.04212, Algorithm 1, lines 7 to 9, from the row maximum r.

    Its shift m* - r is kept within bounds in which P neither rounds to 1 nor vanishes.
    """
    xp, p = ops.xp, plan[Site.P].format
    window = p.tie_window if stabilizer.window is None else stabilizer.window
    repeated = xp.sum(finite(xp, r)[:, None] - s <= window, axis=1) > 1
    shift = xp.where(r > 0.0, ops.multiply(r, stabilizer.beta - 1.0), -r)
    # below this P would round back to 1, or m* back to r
    least = 2.0 * xp.maximum(window, p.tie_window) + spacing(
        ops, xp.maximum(2.0 * xp.abs(r), window), plan[Site.M].format
    )
    shift = xp.minimum(
        xp.maximum(shift, least), -0.5 * math.log(2.0) * xp.maximum(p.emin, -126).astype("float64")
    )
    return xp.where(repeated & (r > -math.inf), r + shift, r)


def masked(at: Events, s: Array) -> Array:
    """Return the scores with -inf for those that do not exist, so that their exp is 0."""
    return s if at.tile.is_whole else at.ops.xp.where(at.tile.mask, s, -math.inf)


def finite(xp: ModuleType, m: Array) -> Array:
    """Return m, or 0 in rows without a key so far, where subtracting m = -inf would give NaN."""
    return xp.where(m == -math.inf, 0.0, m)
