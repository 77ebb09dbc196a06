"""The equations of FlashAttention, forward and backward, for one tile; every engine runs them.

The letters are those of arXiv 2307.08691 and 2510.04212. S are the scores, m is the running
maximum of a row, and l is its running sum. alpha = exp(m_old - m) rescales l and O when m grows. O
is the output before its normalization, P = exp(S - L) with L = m + ln l, and delta = rowsum(dO O).
Names in capitals are sites, which `attention.sites` lists. `at(site, value)` is one rounding event,
and `at.product(site, a, b)` is the event of a sum of products. `at` is an `Events`; it knows the
plan, the tile, and what is injected and recorded.

Arrays are binary64 and hold one tile of bq queries and bk keys, with H features of q and k and Hv
features of v: q (bq, H), k (bk, H), v (bk, Hv), do and O (bq, Hv), m, l, L and delta (bq,), S, P
and dS (bq, bk). `scale` is the factor of S.

A masked score takes part in the sums of its tile like any other, with S = -inf and so P = exp(S -
L) = 0, but NaN where L is NaN: that is what the kernels return whose twins were compared (an
infinity or NaN in one row of q reaches dV at all keys of the row's last tile). cuDNN alone sets P
of a masked score to 0 after the subtraction (`BackwardExponent.AFTER`), and FlashAttention-2 stores
L = inf for a row whose sum is NaN (`softmax.logarithm`), of which P is 0 but where S is inf too. A
multiply-add is no exception: -inf c - L is NaN where L is. The products of a masked score with V
and dO are 0, or NaN where P, V or dO is infinite or NaN. Tiles in which no score exists are left
out by the loops (`attention.tiles`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import (
    BackwardExponent,
    GradientsApart,
    ScaleOfGradient,
    ScoreGradient,
)
from roundscope.attention.plans.forward import KEPT_LANES
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import BLOCK_AXIS, Site
from roundscope.attention.softmax import bias
from roundscope.attention.softmax.exponents import (
    alpha_of_sum,
    base2_scale,
    exponential,
    exponential_again,
    exponential_of_tile,
    exponents,
    exponents_again,
)
from roundscope.attention.softmax.flushed import all_of, empty, flushed
from roundscope.attention.softmax.logarithm import (
    combined_lse,
    log_sum_exp,
    natural_maximum,
    weight,
)
from roundscope.attention.softmax.maximum import finite, less_maximum
from roundscope.attention.softmax.row_sums import (
    added_lanes,
    inverse,
    new_row_sum,
    quotient_gradient,
    quotient_terms,
    rescaled_sum,
    whole_row_sum,
)
from roundscope.attention.softmax.sinks import sink_logit, with_sink
from roundscope.attention.softmax.softcap import BACKWARD, capped, factor, uncapped
from roundscope.attention.tiles.records import (
    AnyState,
    AnySums,
    BiasedSums,
    FlushedState,
    Kept,
    Last,
    Operands,
    PartedState,
    Results,
    State,
    Sums,
    state_of,
)
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.roundings.modes import BINARY32, RoundingMode


def start(
    xp: ModuleType, plan: Plan, rows: int, features: int, sink: Array | None = None
) -> AnyState:
    """Return the state before the first key tile: m = -inf, l = 0 and O = 0.

    In a plan that adds up a row in four lanes, l is (rows, 4).

    rows, features  bq and Hv
    sink            (rows,) if rows begin with a sink, else None. With a sink, m starts at the sink,
                    and l at exp(0) = 1, times 2^offset in a plan with an `offset`
    """
    in_lanes = plan.row_sum in KEPT_LANES
    l = xp.zeros((rows, 4) if in_lanes else (rows,))
    kept: tuple[Kept | Last, ...] = ()
    if plan.flushed_tiles:
        kept = (empty(xp, rows, features),)
    elif plan.normalized_last:
        kept = (Last(xp.zeros((rows,)), *(xp.zeros((rows, features)),) * 2),)
    if sink is not None:
        whole = 2.0**plan.offset  # exp(0)
        m, l = sink, l + whole * (xp.arange(4) == 0) if in_lanes else l + whole
        return state_of(m, l, xp.zeros((rows, features)), *kept)
    return state_of(xp.full((rows,), -math.inf), l, xp.zeros((rows, features)), *kept)


def forward_tile(
    at: Events,
    scale: float,
    state: AnyState,
    q: Array,
    k: Array,
    v: Array,
    of_keys: Array | None = None,
) -> AnyState:
    """Return the state after one key tile: arXiv 2307.08691, Algorithm 1, lines 8 to 10.

    Line 10 is computed with alpha as the factor of O, not with its inverse as the paper prints it.
    The factor is computed at every key tile, but its events (`sites.RESCALES`) exist only in rows
    that had a visible key in an earlier tile. At the first tile with a visible key, alpha is
    exp(-inf) = 0 and l and O are 0, so the new O is 0 + P V, in which -0 becomes +0. In plans that
    compute the softmax first (`_unfused`), O is P V, without that sum.

    A masked score has P = 0 and still takes part in P V, where 0 times an infinite V is NaN. A row
    without a visible key so far keeps m = -inf, l = 0 and O = 0, unless V is infinite.

    of_keys: `key_scales` of the tile, (bk,), or None
    """
    ops, plan = at.ops, at.plan
    mul = ops.multiply
    m_old, l, o, *_ = state
    kept: tuple[Kept | Last, ...] = ()

    s, c, _ = capped(at, *_scores(at, scale, q, k, of_keys))
    c, s = bias.biased(at, c, s)
    m, x, dm = exponents(at, c, m_old, s)
    e = at(Site.EXP, exponential_of_tile(at, x))

    alpha = at(Site.ALPHA, exponential(at, dm))
    of_sum = alpha_of_sum(at, m_old, m, alpha)
    al = at(Site.AL, mul(of_sum if l.ndim == 1 else of_sum[:, None], l))
    ao = at(Site.AO, mul(alpha[:, None], o))

    if plan.normalise_first:
        return _unfused(at, m, al, e, v)
    if isinstance(state, FlushedState):
        ao, second = flushed(at, alpha, ao, state.kept)
        kept = (second,)
    p = at(Site.P, e)
    l = new_row_sum(at, al, p if plan.row_sum_of is Site.P else e)
    if plan.pv_into_o:
        o = at(Site.O, *at.sum(Site.PV, p, v, init=ao, event=Site.O))
    else:
        pv = at.product(Site.PV, p, v)
        if isinstance(state, PartedState):
            kept = (Last(alpha, o, pv),)
        o = at(Site.O, rescaled_sum(at, ao, pv, (Site.AO, Site.O)))
    return state_of(m, l, o, *kept)


def key_scales(ops: Ops, plan: Plan, k: Array) -> Array | None:
    """Return the scale of each key, (S,), in plans with `key_scales` whose K is in blocks.

    K is in blocks already, so rounding it once more gives the scales that it has: in formats with
    scales fp32:nearest and elements to nearest the largest element of a block is the largest of its
    format. In others the scale may be another one, and the product with the elements is the same up
    to binary64.

    k: K of a head, (S, H)
    """
    block = plan.block(Site.K) if plan.key_scales else None
    if block is None:
        return None
    nearest = replace(block, element=replace(block.element, mode=RoundingMode.TIES_TO_EVEN))
    _, unit = ops.round_blocks(k, nearest, BLOCK_AXIS[Site.K], None)
    return unit[:, 0]


def _scores(
    at: Events, scale: float, q: Array, k: Array, of_keys: Array | None
) -> tuple[Array | float, Array]:
    """Return the factor of the scores and S.

    of_keys: `key_scales` of the tile, (bk,), which are then in the factor, (1, bk), and not in S
    """
    if of_keys is None:
        return scale, at.product(Site.S, q, k.T)
    unit = at.ops.xp.broadcast_to(of_keys[:, None], k.shape)
    s = at.product(Site.S, q, at.ops.divide(k, unit).T)
    return at.ops.multiply(of_keys, scale)[None, :], s


def _unfused(at: Events, m: Array, al: Array, e: Array, v: Array) -> State:
    """Return the state of rows that are one tile: P is normalized first, and then O = P V."""
    l = at(Site.L, whole_row_sum(at, al, e))
    p = at(Site.P, _normalized(at, e, l))
    return State(m, l, at(Site.O, at.product(Site.PV, p, v)))


def _normalized(at: Events, e: Array, l: Array) -> Array:
    """Return EXP divided by the row sum l, before its cast to P."""
    return register(at, Site.EI, at.ops.multiply(e, at(Site.INV, inverse(at, l))[:, None]))


def finish(
    at: Events,
    scale: float,
    state: AnyState,
    apart: Array | None = None,
    sink: Array | None = None,
    *,
    of_output: Array | None = None,
) -> Results:
    """Return the output, the output before its last rounding, and L, for all rows of a head.

    For a row without a key these are 0, 0 and -inf, unless V is infinite
    (`without_rows_of_no_key`).

    state      the state after the last key tile, for all rows of a head
    apart      (rows,) of bool: rows that divide by l before the rounding LANES; None if no row does
    sink       (rows,), the sink that is added after the last key tile; None if there is no sink, or
               if the rows began with it
    of_output  the factor of the output, or None
    """
    m, as_it_is, o, *_ = state
    if isinstance(state, FlushedState):
        o = all_of(at, o, state.kept)
    l, scale = kept_row_sum(at, as_it_is), factor(at, scale)
    if sink is not None:
        m, l = with_sink(at, base2_scale(at.ops, at.plan, scale), m, l, sink)
    divisor = l if apart is None else at.ops.xp.where(apart, as_it_is, l)
    if isinstance(state, PartedState):
        wide = _divided_last(at, state.last, divisor)
    else:
        wide = o if at.plan.normalise_first else _divided(at, o, divisor, of_output)
    out = at(Site.OUT, wide)
    lse = at(Site.LSE, log_sum_exp(at, scale, m, l))
    if at.plan.exponent_again is not BackwardExponent.STATE:
        return Results(out, wide, lse)
    state_read = at(Site.MS, natural_maximum(at, scale, m)), l * 2.0**-at.plan.offset
    return Results(out, wide, lse, at.ops.xp.stack(state_read, axis=-1))


def log_of_row_sum(at: Events, scale: float, m: Array, l: Array) -> Array:
    """Return L of rows without a sink; m, l: the maximum and `kept_row_sum` after the last tile."""
    return at(Site.LSE, log_sum_exp(at, factor(at, scale), m, l))


def kept_row_sum(at: Events, l: Array) -> Array:
    """Return l (rows,): its lanes added up, or, with `kept_state`, rounded as for memory."""
    if l.ndim == 2:
        return at(Site.LANES, added_lanes(at, l))
    return at(Site.LANES, l) if at.plan.kept_state else l


def _divided(at: Events, o: Array, l: Array, of_output: Array | None) -> Array:
    """Return O divided by the row sum l, before its last rounding.

    of_output: by which 1 / l is multiplied, as FlashAttention-3 does with the scale of V, or None;
    the product is rounded to binary32 where 1 / l is.
    """
    inv = at(Site.INV, inverse(at, l))
    if of_output is not None:
        inv = at.ops.multiply(inv, of_output)
        if at.plan[Site.INV].format.precision <= BINARY32.format.precision:
            inv = at.ops.round(inv, BINARY32, None)
    return register(at, Site.OI, at.ops.multiply(o, inv[:, None]))


def _divided_last(at: Events, last: Last, l: Array) -> Array:
    """Return INV PV + (INV alpha) O of the last key tile, before its last rounding."""
    ops, inv = at.ops, at(Site.INV, inverse(at, l))
    rescale = at(Site.IA, ops.multiply(inv, last.alpha))
    earlier = at(Site.IO, ops.multiply(rescale[:, None], last.o))
    new = ops.multiply(inv[:, None], last.pv)
    return register(at, Site.OI, ops.odd_sum(*map(ops.hidden, (new, earlier))))


def without_rows_of_no_key(
    at: Events, out: Array, wide: Array, lse: Array, kept: Array | None = None
) -> Results:
    """Return the results of `finish` with 0, 0 and L = -inf in rows that see no key.

    Without this, 0 times an infinite V would make them NaN. In a call with sinks every row sees its
    sink, so nothing changes.
    """
    xp, rows = at.ops.xp, at.tile.rows
    return Results(
        xp.where(rows[:, None], out, 0.0),
        xp.where(rows[:, None], wide, 0.0),
        xp.where(rows, lse, -math.inf),
        kept,
    )


def finish_split(
    at: Events, scale: float, state: State, of_output: Array | None = None
) -> tuple[Array, Array]:
    """Return O and L of one split of the keys, with O before its last rounding."""
    m, l, o = state
    l = kept_row_sum(at, l)
    return _divided(at, o, l, of_output), log_of_row_sum(at, scale, m, l)


def combine(at: Events, splits: Sequence[tuple[Events, Array, Array]]) -> Results:
    """Return the results of `finish` from those of the splits of the keys.

    Each split i has the results O_i and L_i. With M the largest L_i, L is M + ln sum_i exp(L_i -
    M), and O is sum_i exp(L_i - L) O_i, added in the order of the splits.

    splits: (hook, O_i, L_i) of each split, with O_i and L_i as `finish_split` returns them.
    """
    ops, xp = at.ops, at.ops.xp
    lse = at(Site.LSE, combined_lse(ops, xp.stack([own for _, _, own in splits])))
    o = xp.zeros_like(splits[0][1])
    for own, o_i, l_i in splits:
        w = own(Site.SW, weight(ops, l_i - finite(xp, lse)))
        o = own(Site.SO, ops.odd_sum(ops.multiply(w[:, None], o_i), o), kept=o)
    return Results(at(Site.OUT, o), o, lse)


def delta(at: Events, do: Array, o: Array) -> Array:
    """Return delta = rowsum(dO O), (rows,).

    The products are exact in plans without the event DOO.
    """
    ones = at.ops.xp.ones((o.shape[1], 1))
    products = at.ops.multiply(do, at(Site.OD, o))
    if at.plan.delta_products:
        products = at(Site.DOO, products)
    total, exact = at.sum(Site.DELTA, products, ones)
    return at(Site.DELTA, total.squeeze(1), None if exact is None else exact.squeeze(1))


class Again(NamedTuple):
    """The results of the forward for a tile, which the backward computes again.

    p     P, (bq, bk): exp(S - L), or EXP / l in plans with `saved_p`
    tanh  TANH of a plan with a softcap, else the scores S, (bq, bk)
    e, l  in plans with `saved_p`, EXP (bq, bk) and l (bq,), whose quotient is P; else None
    x     in plans with `saved_p`, the exponents of EXP, (bq, bk); else None
    sink  in plans with `saved_p` and calls with sinks, the P of the sink, (bq,); else None
    """

    p: Array
    tanh: Array
    e: Array | None = None
    l: Array | None = None
    x: Array | None = None
    sink: Array | None = None


def probabilities(at: Events, scale: float, q: Array, k: Array, lse: Array) -> Again:
    """Return P of a tile, recomputed from S and from L, (bq,), or from m and l, (bq, 2)."""
    if at.plan.saved_p:
        return saved_probabilities(at, scale, q, k)
    s, c, tanh = capped(at, scale, at.product(Site.S_B, q, k.T), BACKWARD)
    c, s = bias.biased(at, c, s, bias.BACKWARD)
    if at.plan.exponent_again is not BackwardExponent.STATE:
        x = exponents_again(at, c, s, finite(at.ops.xp, lse))
        return Again(at(Site.EXP_B, exponential_again(at, x)), tanh)
    e = exponential_again(at, exponents_again(at, c, s, lse[:, 0]))
    inv = replace(at, recorder=None)(Site.INV, inverse(at, lse[:, 1]))  # the forward's event
    return Again(at(Site.EXP_B, at.ops.multiply(e, inv[:, None])), tanh)


def saved_probabilities(at: Events, scale: float, q: Array, k: Array) -> Again:
    """Return P as the forward computed it, before its cast, for rows that are one tile.

    Its events are not recorded here, since the forward recorded them.
    """
    at = replace(at, recorder=None)
    s, c, tanh = capped(at, *_scores(at, scale, q, k, key_scales(at.ops, at.plan, k)))
    c, s = bias.biased(at, c, s)
    sink = sink_logit(at, c, q.shape[0])
    m_old = at.ops.xp.full((q.shape[0],), -math.inf) if sink is None else sink
    _, x, dm = exponents(at, c, m_old, s)
    e = at(Site.EXP, exponential_of_tile(at, x))
    al = (
        at.ops.xp.zeros(q.shape[0])
        if sink is None
        else at(Site.AL, at(Site.ALPHA, exponential(at, dm)) * 2.0**at.plan.offset)
    )
    l = at(Site.L, whole_row_sum(at, al, e))
    share = (
        None if sink is None else at(Site.PSINK, at.ops.multiply(al, at(Site.INV, inverse(at, l))))
    )
    return Again(_normalized(at, e, l), tanh, e, l, x, share)


def backward_tile(
    at: Events, scale: float, x: Operands, sums: AnySums, do_of_v: Array | None = None
) -> AnySums:
    """Return dQ, dK and dV after one tile: arXiv 2307.08691, Algorithm 2, lines 10 to 16.

    In a call with a bias, the gradient of its tile is returned with them.

    `sums` are the sums so far, to which the tile adds. The scale is applied at the end, or
    where the plan's `gradient_scale` says. At a masked score P = 0, and DP and DPD are not rounded.
    Rows and keys without a visible score in this tile keep their sums unchanged.

    do_of_v: dO as the operand of dV, (bq, Hv), where it is another one
    """
    (q, k, v, do, lse, delta), (dq, dk, dv, *_) = x, sums
    again = probabilities(at, scale, q, k, lse)
    p, ds, of_queries, of_bias = _score_gradients(at, scale, again, v, do, delta)
    if at.plan.dp_from_delta:
        e = p if at.plan.ds_from_p else again.p
        of_queries = _begun_at_delta(at, scale, e, v, do, delta)
    dq = query_gradients(at, of_queries, k, dq)
    dk, dv = key_gradients(at, p, ds, q, do if do_of_v is None else do_of_v, dk, dv)
    return Sums(dq, dk, dv) if of_bias is None else BiasedSums(dq, dk, dv, of_bias)


def score_gradients(at: Events, scale: float, x: Operands) -> tuple[Array, Array]:
    """Return P, as the operand of dV, and dS = P (dP - delta), the operand of dQ and dK."""
    again = probabilities(at, scale, x.q, x.k, x.lse)
    return _score_gradients(at, scale, again, x.v, x.do, x.delta)[:2]


def _score_gradients(
    at: Events, scale: float, again: Again, v: Array, do: Array, delta: Array
) -> tuple[Array, Array, Array, Array | None]:
    """Return P, as the operand of dV, dS, as the operand of dK and as that of dQ, and DBIAS.

    The two dS are one, except in plans with `ds_apart`. DBIAS, the gradient of the bias, is None in
    calls without one. It is dS in its register, without the scale, which has a cast of its own.
    """
    p = at(Site.P_B, again.p * 2.0**at.plan.offset if at.plan.offset_again else again.p)
    dp = at.product(Site.DP, do, v.T)
    if at.plan.score_gradient is ScoreGradient.QUOTIENT:
        ds = quotient_gradient(at, again.e, again.l, dp, delta)
    else:
        ds = _score_gradient(at, scale, p if at.plan.ds_from_p else again.p, dp, delta)
    of_bias = ds = register(at, Site.PD, ds)
    if at.plan.softcap:
        ds = uncapped(at, ds, again.tanh)
    if at.plan.ds_apart:
        ds = _in_register(at, scale, ds, Site.SDS)
        return p, at(Site.DS, ds), at(Site.DSQ, at(Site.DSR, ds)), None
    ds = at(Site.DS, _in_register(at, scale, ds, Site.SDS))
    if at.plan.maximum_gradient:
        of_sink = None
        if again.sink is not None:
            of_sink = replace(at, recorder=None)(
                Site.DSINK, -at.ops.multiply(again.sink, delta)
            )  # a trace records it once, for the whole head
        of_bias = ds = less_maximum(at, ds, again.x, of_sink)
    ds = _as_operand(at, scale, ds, Site.SDS)
    return p, ds, ds, None if at.bias is None else at(Site.DBIAS, of_bias)


def _begun_at_delta(at: Events, scale: float, e: Array, v: Array, do: Array, delta: Array) -> Array:
    """Return dS, the operand of dQ, from a sum dO V^T that begins at -delta; e: P, (bq, bk)."""
    start = at.ops.xp.broadcast_to(-delta[:, None], e.shape)
    dpd = at(Site.DPQ, *at.sum(Site.DP, do, v.T, init=start, event=Site.DPQ))
    ds = register(at, Site.PDQ, at.ops.multiply(e, dpd))
    ds = at(Site.DSQ, _in_register(at, scale, ds, Site.SDSQ))
    return _as_operand(at, scale, ds, Site.SDSQ)


def _as_operand(at: Events, scale: float, ds: Array, scaled: Site) -> Array:
    """Return dS after its cast, multiplied by the scale if the plan says so."""
    if at.plan.gradient_scale is not ScaleOfGradient.OPERAND:
        return ds
    return at(scaled, at.ops.multiply(ds, scale))


def _in_register(at: Events, scale: float, ds: Array, scaled: Site) -> Array:
    """Return dS before its cast, multiplied by the scale if the plan says so."""
    if at.plan.gradient_scale is not ScaleOfGradient.REGISTER:
        return ds
    return at(scaled, at.ops.multiply(ds, scale))


def _score_gradient(at: Events, scale: float, e: Array, dp: Array, delta: Array) -> Array:
    """Return dS before its cast: P (dP - delta), or P dP - delta P, as the plan says; e: P."""
    mul = at.ops.multiply
    if at.plan.gradient_scale is ScaleOfGradient.PROBABILITY:
        e = at(Site.SDS, mul(e, scale))
    if at.plan.score_gradient is ScoreGradient.DIFFERENCE:
        return mul(e, at(Site.DPD, dp - delta[:, None]))
    return at.ops.odd_sum(register(at, Site.PDP, mul(e, dp)), -mul(e, delta[:, None]))


def register(at: Events, site: Site, x: Array) -> Array:
    """Return x after its event in a binary32 register, in plans with `registers`; else x itself."""
    return at(site, x) if at.plan.registers else x


def query_gradients(at: Events, ds: Array, k: Array, dq: Array) -> Array:
    """Return dQ + dS K after one tile; dq: the sum so far, (bq, H)."""
    apart = at.plan.gradients_apart is not GradientsApart.NONE
    return _added(at, Site.DQ, Site.DQP if apart else None, ds, k, dq)


def key_gradients(
    at: Events, p: Array, ds: Array, q: Array, do: Array, dk: Array, dv: Array
) -> tuple[Array, Array]:
    """Return dK + dS^T Q and dV + P^T dO after one tile; dk, dv: the sums so far."""
    apart = at.plan.gradients_apart is GradientsApart.ALL
    dv = _added(at, Site.DV, Site.DVP if apart else None, at.ops.transposed(p), do, dv)
    return _added(at, Site.DK, Site.DKP if apart else None, at.ops.transposed(ds), q, dk), dv


def _added(at: Events, site: Site, part: Site | None, a: Array, b: Array, total: Array) -> Array:
    """Return total + a b, rounded at `site`; where the event does not exist, return `total`.

    Without `part` this is one sum, which starts at the total. With `part` the products of the tile
    are summed separately and rounded at the site `part`, and then added to the total.
    """
    if part is None:
        return at.product(site, a, b, init=total)
    return at(site, total + at(part, *at.sum(site, a, b)), kept=total)


def delta_tile(
    at: Events,
    scale: float,
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    lse: Array,
    sums: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Return the sums that give delta after the tile's rowsum(P dP) is added to them.

    `sums` has this sum twice. The first is added by DELTA's accumulator. The second is too, unless
    an Exact() injection at DELTA needs it in binary64. If `sums` has four entries, the other two
    are rowsum(P), added in the same two ways.

    `at` records nothing here, since `backward_tile` has the same events and records them.
    """
    again = probabilities(at, scale, q, k, lse)
    dp = at.product(Site.DP, do, v.T)
    if at.plan.score_gradient is ScoreGradient.QUOTIENT:
        products = quotient_terms(at, again.e, again.l, dp)
    else:
        p = at(Site.P_B, again.p) if at.plan.ds_from_p else again.p
        products = register(at, Site.PDP, at.ops.multiply(p, dp))
    terms = (products, again.p)[: len(sums) // 2]
    return tuple(
        total for i, x in enumerate(terms) for total in _row_sum(at, x, *sums[2 * i : 2 * i + 2])
    )


def _row_sum(at: Events, x: Array, rounded: Array, exact: Array) -> tuple[Array, Array]:
    """Return the sums plus the rows of x (bq, bk): by DELTA's accumulator, and exactly."""
    ones = at.ops.xp.ones((x.shape[1], 1))
    total, _ = at.sum(Site.DELTA, x, ones, init=rounded[:, None])
    _, wanted = at.sum(Site.DELTA, x, ones, init=exact[:, None])
    return total.squeeze(1), total.squeeze(1) if wanted is None else wanted.squeeze(1)
