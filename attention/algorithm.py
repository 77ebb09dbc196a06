"""FlashAttention, forward and backward, one tile at a time: the equations, once, for every engine.

Letters are those of arXiv 2307.08691 and 2510.04212: S scores, m running maximum, l running row sum, O the
unnormalised output, L = m + ln l, delta = rowsum(dO O). `at(site, value)` is one rounding event,
`at.product(site, a, b)` the event of a sum of products. Arrays are binary64; shapes: q (bq, H), k (bk, H), v (bk, H).
"""

import math
from typing import Any

from roundscope.attention.events.hook import Events
from roundscope.attention.plan import Exponential, Plan, Stabiliser
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.functions import LOG2_E, exp2_64, exp64, log64

State = tuple[Array, Array, Array]  # m (bq,), l (bq,), O (bq, H)


def start(xp: Any, rows: int, features: int) -> State:
    """The state before the first tile."""
    return xp.full((rows,), -math.inf), xp.zeros((rows,)), xp.zeros((rows, features))


def forward_tile(at: Events, scale: float, state: State, q: Array, k: Array, v: Array) -> State:
    """One key tile: arXiv 2307.08691, Algorithm 1, lines 8 to 10 (with the rescaling of line 10 as alpha, not its inverse)."""
    ops, plan = at.ops, at.plan
    xp, mul = ops.xp, ops.multiply
    m_old, l, o = state

    s = at.product(Site.S, q, k.T)
    s = masked(at, at(Site.SCALED, mul(s, scale)))
    m = at(Site.M, xp.maximum(m_old, row_maximum(ops, plan, s)))
    e = at(Site.EXP, exponential(at, at(Site.X, exponent(at, s - finite(xp, m)[:, None]))))

    alpha = at(Site.ALPHA, exponential(at, at(Site.DM, exponent(at, m_old - finite(xp, m)))))
    al = at(Site.AL, mul(alpha, l))
    ao = at(Site.AO, mul(alpha[:, None], o))

    if plan.normalise_first:
        return _unfused(at, m, al, e, v)
    p = at(Site.P, e)
    l = at(Site.L, al + row_sum(at, p if plan.row_sum_of is Site.P else e))
    if plan.pv_into_o:
        o = at(Site.O, *at.sum(Site.PV, p, v, init=ao, event=Site.O))
    else:
        o = at(Site.O, ao + at.product(Site.PV, p, v))
    return m, l, o


def _unfused(at: Events, m: Array, al: Array, e: Array, v: Array) -> State:
    """Softmax first, then P V: the whole row is one tile, and O leaves normalised."""
    l = at(Site.L, al + row_sum(at, e))
    inverse = at(Site.INV, reciprocal(at.ops.xp, l))
    p = at(Site.P, at.ops.multiply(e, inverse[:, None]))
    return m, l, at(Site.O, at.product(Site.PV, p, v))


def row_sum(at: Events, e: Array) -> Array:
    """sum_s e, an event and a sum of products with ones."""
    ones = at.ops.xp.ones((e.shape[1], 1))
    total, exact = at.sum(Site.ROWSUM, e, ones)
    return at(Site.ROWSUM, total.squeeze(1), None if exact is None else exact.squeeze(1))


def finish(at: Events, state: State) -> tuple[Array, Array, Array]:
    """Output, output before its last rounding, and L; rows without keys give 0, 0 and -inf."""
    ops = at.ops
    m, l, o = state
    if at.plan.normalise_first:
        wide = o
    else:
        wide = ops.multiply(o, at(Site.INV, reciprocal(ops.xp, l))[:, None])
    out = at(Site.OUT, wide)
    lse = at(Site.LSE, finite(ops.xp, m) + ops.call(log64, l))
    return out, wide, lse


def delta(at: Events, do: Array, o: Array) -> Array:
    """delta = rowsum(dO O), products exact."""
    ones = at.ops.xp.ones((o.shape[1], 1))
    total, exact = at.sum(Site.DELTA, at.ops.multiply(do, at(Site.OD, o)), ones)
    return at(Site.DELTA, total.squeeze(1), None if exact is None else exact.squeeze(1))


def probabilities(at: Events, scale: float, q: Array, k: Array, lse: Array) -> Array:
    """exp(S - L), recomputed."""
    ops = at.ops
    s = masked(at, at(Site.SCALED_B, ops.multiply(at.product(Site.S_B, q, k.T), scale)))
    x = at(Site.X_B, exponent(at, s - finite(ops.xp, lse)[:, None]))
    return at(Site.EXP_B, exponential(at, x))


def backward_tile(
    at: Events, scale: float, q: Array, k: Array, v: Array, do: Array, lse: Array, delta: Array,
    dq: Array, dk: Array, dv: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One tile of the backward: arXiv 2307.08691, Algorithm 2, lines 10 to 16. The scale is applied at the end."""
    p, ds = score_gradients(at, scale, q, k, v, do, lse, delta)
    return query_gradients(at, ds, k, dq), *key_gradients(at, p, ds, q, do, dk, dv)


def score_gradients(
    at: Events, scale: float, q: Array, k: Array, v: Array, do: Array, lse: Array, delta: Array
) -> tuple[Array, Array]:  # fmt: skip
    """P, as the operand of dV, and dS = P (dP - delta)."""
    e = probabilities(at, scale, q, k, lse)
    p = at(Site.P_B, e)
    dp = at.product(Site.DP, do, v.T)
    dpd = at(Site.DPD, dp - delta[:, None])
    return p, at(Site.DS, at.ops.multiply(e, dpd))


def query_gradients(at: Events, ds: Array, k: Array, dq: Array) -> Array:
    """dQ + dS K."""
    return at.product(Site.DQ, ds, k, init=dq)


def key_gradients(at: Events, p: Array, ds: Array, q: Array, do: Array, dk: Array, dv: Array) -> tuple[Array, Array]:
    """dK + dS^T Q and dV + P^T dO."""
    dv = at.product(Site.DV, at.ops.transposed(p), do, init=dv)
    return at.product(Site.DK, at.ops.transposed(ds), q, init=dk), dv


def delta_tile(
    at: Events, scale: float, q: Array, k: Array, v: Array, do: Array, lse: Array, sums: tuple[Array, ...]
) -> tuple[Array, ...]:  # fmt: skip
    """sums + (rowsum(P dP), the same exactly where an injection wants that) over one tile, by DELTA's accumulator; rowsum(P) is
    added in the same two ways where `sums` has four.

    `at` records nothing here, the events are the backward's own.
    """
    e = probabilities(at, scale, q, k, lse)
    dp = at.product(Site.DP, do, v.T)
    terms = (at.ops.multiply(e, dp), e)[: len(sums) // 2]
    return tuple(total for i, x in enumerate(terms) for total in _row_sum(at, x, *sums[2 * i : 2 * i + 2]))


def _row_sum(at: Events, x: Array, rounded: Array, exact: Array) -> tuple[Array, Array]:
    ones = at.ops.xp.ones((x.shape[1], 1))
    total, _ = at.sum(Site.DELTA, x, ones, init=rounded[:, None])
    _, wanted = at.sum(Site.DELTA, x, ones, init=exact[:, None])
    return total.squeeze(1), total.squeeze(1) if wanted is None else wanted.squeeze(1)


def exponent(at: Events, x: Array) -> Array:
    """The exponent of the plan's base: x, or x log2 e where exp is 2^x."""
    return x if at.plan.exp is Exponential.CORRECT else at.ops.multiply(x, LOG2_E)


def exponential(at: Events, x: Array) -> Array:
    """The plan's base to the power of x."""
    return at.ops.call(exp64 if at.plan.exp is Exponential.CORRECT else exp2_64, x)


def masked(at: Events, s: Array) -> Array:
    """Scores that do not exist are -inf: their exp is 0, and no event counts them."""
    return s if at.tile.is_whole else at.ops.xp.where(at.tile.mask, s, -math.inf)


def finite(xp: Any, m: Array) -> Array:
    """m, or 0 for rows that have no key: -inf - -inf would be NaN."""
    return xp.where(m == -math.inf, 0.0, m)


def reciprocal(xp: Any, l: Array) -> Array:
    """1 / l, or 0 for rows that have no key."""
    return xp.where(l == 0.0, 0.0, 1.0 / xp.where(l == 0.0, 1.0, l))


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
