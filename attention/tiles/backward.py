"""The backward of one attention head: the loops over its tiles, for every engine.

The equations of a tile are in `attention.algorithm`, the setup and tiles in `tiles.loops`, and the
order of the tiles in `tiles.orders`. This module also has the events before and after the tiles:
delta, and the final gradients of queries, keys and sinks.
"""

import functools
import operator
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

from roundscope.attention import algorithm
from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import REAL_DELTAS, DeltaFrom, ScaleOfGradient
from roundscope.attention.sites import Site
from roundscope.attention.softmax.row_sums import reciprocal
from roundscope.attention.softmax.sinks import sink_gradient
from roundscope.attention.tiles.loops import (
    Setup,
    backwards,
    bounds,
    computed,
    events_at,
    if_any,
    in_tiles,
    mask_tiles,
    tile_at,
    turned_back,
    whole_events,
    whole_head,
)
from roundscope.attention.tiles.orders import Pass, merged, passes
from roundscope.attention.tiles.records import (
    AnySums,
    BiasedSums,
    Gradients,
    Operands,
    Residuals,
    Sums,
)
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.roundings.modes import BINARY32
from roundscope.events.hook import NOISE, random_bits
from roundscope.events.place import Index
from roundscope.events.recorder import Seen

_OPERANDS = Operands(  # the events whose results a tile reads
    (Site.Q, Site.QS), (Site.K, Site.KS, Site.KC), Site.V, Site.DO, Site.LSE, Site.DELTA
)
_SUMS = Sums(Site.DQ, Site.DK, Site.DV)


class _Queries(NamedTuple):
    """Tiles of queries, or one of them, and its part of the mask and the bias of a key tile.

    dbias: the gradient of that part of the bias
    """

    q: Array
    do: Array
    lse: Array
    delta: Array | None
    dq: Array | None
    mask: Array | None
    bias: Array | None
    dbias: Array | None = None
    do_of_v: Array | None = None


class _Keys(NamedTuple):
    """Tiles of keys, or one of them, and its part of the mask and of the bias."""

    k: Array
    v: Array
    dk: Array | None
    dv: Array | None
    mask: Array | None
    bias: Array | None
    dbias: Array | None = None


def backward(
    ops: Ops, setup: Setup, head: Index, given: Residuals, do: Array
) -> tuple[Gradients, dict[str, Seen | None]]:
    """Return the backward of one head, and what was recorded of its "tiles" and of the "whole".

    head   the head's flat index, batch entry * heads + head
    given  what the forward read and returned; in plans with `scaled_keys`, k is after its event KC
    do     (T, Hv), rounded by its event and padded to whole tiles

    The results are dQ, which is rounded; dK and dV of this query head, which `round_key_gradients`
    rounds later; and delta (T,). The sums begin at 0. A tile adds to them only in rows and keys
    that have a visible score in it, so a row without a visible key has dQ = 0.
    """
    xp, (q, k, v, mask, sink, *_, bias) = ops.xp, given.inputs
    delta, seen_first = deltas(ops, setup, head, given, do)
    do_of_v, own = _cast_apart(ops, setup, head, mask, do)
    seen_first |= own
    q_tiles, do_tiles, lse_tiles, delta_tiles = (
        in_tiles(x, setup.block_q) for x in (q, do, given.results.of_rows, delta)
    )
    k_tiles, v_tiles = in_tiles(k, setup.block_k), in_tiles(v, setup.block_k)
    masks, biases = mask_tiles(setup, mask), mask_tiles(setup, bias)

    def one_pass(part: Pass, sums: AnySums) -> tuple[AnySums, Seen]:
        """Return dQ, dK and dV by tile after one pass, and what was recorded in it."""

        def key_tile(
            dq_tiles: Array, n: Index, y: _Keys
        ) -> tuple[Array, tuple[Array, Array, Array | None, Seen]]:
            """Return dQ of all query tiles after the n-th key tile, y, and its dK, dV and dB."""
            j = setup.key_tiles - 1 - n if part.keys_down else n

            def query_tile(
                carry: tuple[Array, Array], n: Index, x: _Queries
            ) -> tuple[tuple[Array, Array], tuple[Array, Array | None, Seen]]:
                """Return dK and dV after the n-th query tile, x, and dQ and dB of that tile."""
                i = setup.query_tiles - 1 - n if part.queries_down else n
                tile = tile_at(ops, setup, head, i, j, x.mask, None)
                before = sums_of(x.dq, *carry, x.dbias)

                def compute() -> tuple[AnySums, Seen]:
                    operands = Operands(x.q, y.k, y.v, x.do, x.lse, x.delta)
                    apart = () if x.do_of_v is None else ((x.do_of_v,),)
                    given = operands, before, *apart
                    sites = _OPERANDS, (_SUMS if y.bias is None else (*_SUMS, Site.DBIAS))
                    return computed(ops, setup, tile, _step, given, sites, sink, x.bias)

                taken = None if part.takes is None else part.takes(*bounds(setup, i, j))
                sums, seen = if_any(ops, setup, tile, masks, compute, before, taken)
                return (sums.dk, sums.dv), (sums.dq, of_bias(sums), seen)

            rows = _Queries(
                q_tiles,
                do_tiles,
                lse_tiles,
                delta_tiles,
                dq_tiles,
                y.mask,
                y.bias,
                y.dbias,
                do_of_v,
            )
            (dk, dv), later = ops.scan(
                query_tile, (y.dk, y.dv), backwards(rows) if part.queries_down else rows
            )
            dq_tiles, dbias, seen = backwards(later) if part.queries_down else later
            return dq_tiles, (dk, dv, dbias, seen)

        turned, own = (None if x is None else x.swapaxes(0, 1) for x in (masks, biases))
        columns = _Keys(k_tiles, v_tiles, sums.dk, sums.dv, turned, own, of_bias(sums))
        dq, later = ops.scan(key_tile, sums.dq, backwards(columns) if part.keys_down else columns)
        dk, dv, dbias, seen = backwards(later) if part.keys_down else later
        return sums_of(dq, dk, dv, dbias), seen

    dbias = None if biases is None else xp.zeros_like(biases.swapaxes(0, 1))
    dq, dk, dv = map(xp.zeros_like, (q_tiles, k_tiles, v_tiles))
    sums = sums_of(dq, dk, dv, dbias)
    seen: Seen | None = None
    for part in passes(setup.plan, setup.is_causal):
        sums, own = one_pass(part, sums)
        i, j = xp.arange(setup.query_tiles), xp.arange(setup.key_tiles)[:, None]
        seen = (
            own
            if seen is None or part.takes is None
            else merged(xp, part.takes(*bounds(setup, i, j)), own, seen)
        )
    whole = whole_head(ops, setup, head, mask)
    dq, dk, dv = (x.reshape(*like.shape) for x, like in zip(sums[:3], (q, k, v), strict=True))
    dq, seen_last = computed(ops, setup, whole, _last, ((dq,),), ((Site.DQ,),))
    if setup.plan.rounded_heads:
        given_sums = ((dk, dv),), ((Site.DK, Site.DV),)
        (dk, dv), own = computed(ops, setup, whole, _of_head, *given_sums)
        seen_last |= own
    dbias = of_bias(sums)
    if (
        dbias is not None and bias is not None
    ):  # (key tiles, query tiles, block_q, block_k) -> (T, S)
        dbias = dbias.transpose(1, 2, 0, 3).reshape(bias.shape)
    found = Gradients(dq, dk, dv, delta, dbias)
    return found, {"tiles": seen, "whole": seen_first | seen_last}


def sums_of(dq: Array, dk: Array, dv: Array, bias: Array | None) -> AnySums:
    """Return sums of these parts; bias: None in a call without one."""
    return Sums(dq, dk, dv) if bias is None else BiasedSums(dq, dk, dv, bias)


def of_bias(sums: AnySums) -> Array | None:
    """Return the gradient of the bias, None in a call without one."""
    return sums.bias if isinstance(sums, BiasedSums) else None


def _step(
    at: Events, setup: Setup, operands: Operands, sums: AnySums, apart: tuple[Array, ...] = ()
) -> AnySums:
    return algorithm.backward_tile(at, setup.of_scores, operands, sums, *apart)


def _last(at: Events, setup: Setup, sums: tuple[Array, ...]) -> Array:
    return round_query_gradients(at, setup, *sums)


def _of_head(at: Events, setup: Setup, sums: tuple[Array, ...]) -> tuple[Array, Array]:
    return round_head_gradients(at, setup, *sums)


def _cast_apart(
    ops: Ops, setup: Setup, head: Index, mask: Array | None, do: Array
) -> tuple[Array | None, Seen]:
    """Return dO as the operand of dV, by query tile, in plans with `do_apart`, else None."""
    if not setup.plan.do_apart:
        return None, {}
    at = whole_events(ops, setup, head, mask)
    return in_tiles(at(Site.DOV, do), setup.block_q), at.seen()


def _delta(at: Events, setup: Setup, operands: tuple[Array, ...]) -> Array:
    return algorithm.delta(at, *operands)


def deltas(ops: Ops, setup: Setup, head: Index, given: Residuals, do: Array) -> tuple[Array, Seen]:
    """Return delta of all rows of a head, (T,), from the plan's operands, and what was recorded.

    The arguments are those of `backward`.
    """
    at, how = whole_events(ops, setup, head, given.inputs.mask), setup.plan.delta_from
    if how is DeltaFrom.OUT:
        read = do, given.results.out
        return computed(ops, setup, at.tile, _delta, (read,), ((Site.DO, Site.OUT),))
    if how is DeltaFrom.WIDE_O:
        read = do, given.results.wide
        return computed(ops, setup, at.tile, _delta, (read,), ((Site.DO, ()),))
    total, exact, *mass = (x.reshape(-1) for x in _delta_from_p_dp(ops, setup, head, given, do))
    if mass:
        total, exact = (
            ops.multiply(x, reciprocal(ops.xp, l))
            for x, l in zip((total, exact), mass, strict=True)
        )
    if how not in REAL_DELTAS:
        own = algorithm.delta(replace(at, recorder=None), do, given.results.out)
        total, exact = (own + _sham(at, setup, x - own) for x in (total, exact))
    delta = at(Site.DELTA, total, exact)
    return delta, at.seen()


def _sham(at: Events, setup: Setup, c: Array) -> Array:
    """Return the corrections of the rows, (T,), in other rows or with random signs."""
    if setup.plan.delta_from is DeltaFrom.OTHER_ROWS:
        rows, half = setup.queries, setup.queries - setup.queries // 2
        return at.ops.xp.concatenate([c[rows - half : rows], c[: rows - half], c[rows:]])
    coins = random_bits(at.ops.xp, at.tile, Site.DELTA, 0, c.shape, NOISE) & 1
    return c * (coins * 2 - 1).astype("float64")


def _delta_from_p_dp(
    ops: Ops, setup: Setup, head: Index, given: Residuals, do: Array
) -> tuple[Array, ...]:
    """Return rowsum(P dP) of a head by query tile, and but for P_DP also rowsum(P).

    Each sum is returned twice, (query tiles, block_q). The first is added by DELTA's accumulator.
    The second is too, unless an Exact() injection at DELTA needs it in binary64. Nothing is
    recorded here, since `backward` has the same events and records them.
    """
    q, k, v, mask, sink, *_, bias = given.inputs
    masks = mask_tiles(setup, mask)
    of_q, of_do, of_lse = (in_tiles(x, setup.block_q) for x in (q, do, given.results.of_rows))
    rows = _Queries(of_q, of_do, of_lse, None, None, masks, mask_tiles(setup, bias))
    keys = _Keys(in_tiles(k, setup.block_k), in_tiles(v, setup.block_k), None, None, None, None)

    def query_tile(carry: None, i: Index, x: _Queries) -> tuple[None, tuple[Array, ...]]:
        """Return the sums of query tile i over all key tiles."""

        def key_tile(sums: tuple[Array, ...], j: Index, y: _Keys) -> tuple[tuple[Array, ...], None]:
            """Return the sums after key tile j."""
            tile = tile_at(ops, setup, head, i, j, y.mask, None)

            def compute() -> tuple[tuple[Array, ...], None]:
                at = events_at(ops, setup, tile, silent=True, sink=sink, bias=y.bias)
                return (
                    algorithm.delta_tile(at, setup.of_scores, x.q, y.k, y.v, x.do, x.lse, sums),
                    None,
                )

            return if_any(ops, setup, tile, masks, compute, sums)

        count = 2 if setup.plan.delta_from is DeltaFrom.P_DP else 4
        zeros = (ops.xp.zeros_like(x.do[:, 0]),) * count
        return None, ops.scan(key_tile, zeros, keys._replace(mask=x.mask, bias=x.bias))[0]

    sums: tuple[Array, ...] = ops.scan(query_tile, None, rows)[1]
    return sums


def round_query_gradients(at: Events, setup: Setup, dq: Array) -> Array:
    """Return the final dQ of a head, (T, H): multiplied by its factor and rounded.

    at: the hook of the whole head.
    """
    dq = turned_back(setup, dq, of_keys=False)
    if setup.plan.gradient_scale is ScaleOfGradient.RESULT:
        dq = algorithm.register(at, Site.SDQ, at.ops.multiply(dq, setup.factor_of_queries))
    return at(Site.DQ_OUT, dq)


def round_head_gradients(at: Events, setup: Setup, dk: Array, dv: Array) -> tuple[Array, Array]:
    """Return dK and dV of one query head, (S, features), rounded in plans with `rounded_heads`.

    at: the hook of the whole head.
    """
    if not setup.plan.rounded_heads:
        return dk, dv
    dk, dv = _times_factors(at, setup, Site.SDKH, dk, dv)
    return at(Site.DKH, dk), at(Site.DVH, dv)


def round_key_gradients(
    ops: Ops, setup: Setup, head: Index, dk: Array, dv: Array
) -> tuple[tuple[Array, Array], Seen]:
    """Return the final dK and dV of one key head, and what was recorded.

    dk, dv: (group, S, features), the gradients of the query heads that share the key head. They are
    added up in ascending order in binary64, so that only the output is rounded; in plans with
    `rounded_heads` they were rounded, and are added in binary32. The sum begins at
    the first head and not at 0, so -0 stays -0 in a group of one head.
    """
    whole = whole_head(ops, setup, head, None, setup.key_heads)
    return computed(ops, setup, whole, _of_keys, ((dk, dv),), ((Site.DK, Site.DV),))


def _of_keys(at: Events, setup: Setup, sums: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return the final dK and dV of a key head from the sums of its query heads."""

    def in_binary32(a: Array, b: Array) -> Array:
        return at.ops.round(a + b, BINARY32, None)

    add = in_binary32 if setup.plan.rounded_heads else operator.add
    dk, dv = (functools.reduce(add, x) for x in sums)
    return rounded_key_gradients(at, setup, dk, dv)


def rounded_key_gradients(at: Events, setup: Setup, dk: Array, dv: Array) -> tuple[Array, Array]:
    """Return the final dK and dV, (S, features): dK multiplied by its factor, both rounded.

    In plans with `rounded_heads`, dK was multiplied in each query head.
    """
    if not setup.plan.rounded_heads:
        dk, dv = _times_factors(at, setup, Site.SDK, dk, dv)
    return at(Site.DK_OUT, dk), at(Site.DV_OUT, dv)


def _times_factors(
    at: Events, setup: Setup, site: Site, dk: Array, dv: Array
) -> tuple[Array, Array]:
    """Return dK multiplied by its factor, where that is not in dS, and dV without that of P.

    site: SDK or SDKH
    """
    dk = turned_back(setup, dk, of_keys=True)
    if setup.plan.gradient_scale is ScaleOfGradient.RESULT:
        dk = algorithm.register(at, site, at.ops.multiply(dk, setup.factor_of_keys))
    return dk, dv * 2.0**-setup.plan.offset if setup.plan.offset_again else dv


def sink_gradients(
    ops: Ops, setup: Setup, head: Index, sink: Array, lse: Array, delta: Array
) -> tuple[Array, Seen]:
    """Return the gradient of a head's sink, and what was recorded.

    It is the sum of DSINK over the rows, in binary64, in the order of `by_halves`. Rows that pad
    the last tile are left out: they have no L.

    sink        the logit, a scalar
    lse, delta  L and delta of the head, (T,)
    """
    at = whole_events(ops, setup, head, None, sink)
    return by_halves(ops.xp, sink_gradient(at, lse, delta)[: setup.queries]), at.seen()


def by_halves(xp: ModuleType, x: Array) -> Array:
    """Return the sum of an array over its first axis, in binary64, in a fixed order.

    The array is padded with zeros to a power of two. Then its two halves are added to each other
    until one entry is left. With this order every engine has the same bits.
    """
    size = 1 << (x.shape[0] - 1).bit_length()
    x = xp.concatenate([x, xp.zeros((size - x.shape[0], *x.shape[1:]))])
    while (half := x.shape[0] // 2) > 0:
        x = x[:half] + x[half:]
    return x[0]
