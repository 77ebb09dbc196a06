"""The backward of one attention head: the loops over its tiles, for every engine.

The equations of a tile are in `attention.algorithm`, the setup and tiles in `tiles.loops`, and the
order of the tiles in `tiles.orders`. This module also has the events before and after the tiles:
delta, and the final gradients of queries, keys and sinks.
"""

import functools
import operator
from types import ModuleType
from typing import TypeAlias

from roundscope.attention import algorithm
from roundscope.attention.events.hook import Events
from roundscope.attention.events.recorder import Seen
from roundscope.attention.plans.choices import DeltaFrom, ScaleOfGradient
from roundscope.attention.sites import Site
from roundscope.attention.softmax.row_sums import reciprocal
from roundscope.attention.softmax.sinks import sink_gradient
from roundscope.attention.tiles.index import Index
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
    whole_events,
    whole_head,
)
from roundscope.attention.tiles.orders import Pass, merged, passes
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.logarithms import LN_2

Gradients: TypeAlias = tuple[Array, Array, Array]  # dQ, dK, dV
_OPERANDS = (
    (Site.Q, Site.QS),
    (Site.K, Site.KS, Site.KC),
    Site.V,
    Site.DO,
    Site.LSE,
    Site.DELTA,
    Site.DQ,
    Site.DK,
    Site.DV,
)


def backward(
    ops: Ops,
    setup: Setup,
    head: Index,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    wide: Array,
    lse: Array,
    do: Array,
    sink: Array | None = None,
) -> tuple[tuple[Array, Array, Array, Array], dict[str, Seen | None]]:
    """Return the backward of one head, and what was recorded of its "tiles" and of the "whole".

    head           the head's flat index, batch entry * heads + head
    q, k, v, do    (T, H), (S, H), (S, Hv) and (T, Hv), rounded by their events and padded to whole
                   tiles
    mask           (T, S) of bool, padded with False, or None out, wide, lse the results of
                   `forward`: the output, the output before its last rounding, and L
    sink           the logit of the head's sink, a scalar, or None

    The results are dQ, which is rounded; dK and dV of this query head, which `round_key_gradients`
    rounds later; and delta (T,). The sums begin at 0. A tile adds to them only in rows and keys
    that have a visible score in it, so a row without a visible key has dQ = 0.
    """
    xp = ops.xp
    delta, seen_first = deltas(ops, setup, head, q, k, v, mask, out, wide, lse, do, sink)
    q_tiles, do_tiles, lse_tiles, delta_tiles = (
        in_tiles(x, setup.block_q) for x in (q, do, lse, delta)
    )
    k_tiles, v_tiles = in_tiles(k, setup.block_k), in_tiles(v, setup.block_k)
    masks = mask_tiles(setup, mask)

    def one_pass(part: Pass, sums: Gradients) -> tuple[Gradients, Seen]:
        """Return dQ, dK and dV by tile after one pass, and what was recorded in it."""

        def key_tile(
            dq_tiles: Array, n: Index, y: tuple[Array, ...]
        ) -> tuple[Array, tuple[Array, Array, Seen]]:
            """Return dQ of all query tiles after the n-th key tile, y, and its dK and dV."""
            j = setup.key_tiles - 1 - n if part.keys_down else n

            def query_tile(
                carry: tuple[Array, Array], n: Index, x: tuple[Array, ...]
            ) -> tuple[tuple[Array, Array], tuple[Array, Seen]]:
                """Return dK and dV after the n-th query tile, x, and dQ of that tile."""
                i = setup.query_tiles - 1 - n if part.queries_down else n
                tile = tile_at(ops, setup, head, i, j, x[5] if masks is not None else None, None)

                def compute() -> tuple[Gradients, Seen]:
                    operands = x[0], y[0], y[1], x[1], x[2], x[3], x[4], *carry
                    return computed(ops, setup, tile, _step, (operands,), (_OPERANDS,), sink)

                taken = None if part.takes is None else part.takes(*bounds(setup, i, j))
                (dq, dk, dv), seen = if_any(ops, setup, tile, masks, compute, (x[4], *carry), taken)
                return (dk, dv), (dq, seen)

            rows: tuple[Array, ...] = (q_tiles, do_tiles, lse_tiles, delta_tiles, dq_tiles)
            rows = rows if masks is None else (*rows, y[4])
            (dk, dv), later = ops.scan(
                query_tile, (y[2], y[3]), backwards(rows) if part.queries_down else rows
            )
            dq_tiles, seen = backwards(later) if part.queries_down else later
            return dq_tiles, (dk, dv, seen)

        columns = (
            (k_tiles, v_tiles, *sums[1:])
            if masks is None
            else (k_tiles, v_tiles, *sums[1:], masks.swapaxes(0, 1))
        )
        dq, later = ops.scan(key_tile, sums[0], backwards(columns) if part.keys_down else columns)
        dk, dv, seen = backwards(later) if part.keys_down else later
        return (dq, dk, dv), seen

    sums = xp.zeros_like(q_tiles), xp.zeros_like(k_tiles), xp.zeros_like(v_tiles)
    seen: Seen | None = None
    for part in passes(setup.plan, setup.is_causal):
        sums, own = one_pass(part, sums)
        i, j = xp.arange(setup.query_tiles), xp.arange(setup.key_tiles)[:, None]
        seen = (
            own
            if seen is None or part.takes is None
            else merged(xp, part.takes(*bounds(setup, i, j)), own, seen)
        )
    dq, dk, dv = sums
    whole = whole_head(ops, setup, head, mask)
    dq, seen_last = computed(ops, setup, whole, _last, ((dq.reshape(*q.shape),),), ((Site.DQ,),))
    return (dq, dk.reshape(*k.shape), dv.reshape(*v.shape), delta), {
        "tiles": seen,
        "whole": seen_first | seen_last,
    }


def _step(at: Events, setup: Setup, operands: tuple[Array, ...]) -> Gradients:
    """Return dQ, dK and dV after a tile; the events of the operands are `_OPERANDS`."""
    return algorithm.backward_tile(at, setup.of_scores, *operands)


def _last(at: Events, setup: Setup, sums: tuple[Array, ...]) -> Array:
    """Return the final dQ of a head from the sums dQ."""
    return round_query_gradients(at, setup, *sums)


def _delta(at: Events, setup: Setup, operands: tuple[Array, ...]) -> Array:
    """Return delta of a head from its dO and O."""
    return algorithm.delta(at, *operands)


def deltas(
    ops: Ops,
    setup: Setup,
    head: Index,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    wide: Array,
    lse: Array,
    do: Array,
    sink: Array | None = None,
) -> tuple[Array, Seen]:
    """Return delta of all rows of a head, (T,), from the plan's operands, and what was recorded.

    The arguments are those of `backward`.
    """
    at = whole_events(ops, setup, head, mask)
    if setup.plan.delta_from is DeltaFrom.OUT:
        return computed(ops, setup, at.tile, _delta, ((do, out),), ((Site.DO, Site.OUT),))
    if setup.plan.delta_from is DeltaFrom.WIDE_O:
        return computed(ops, setup, at.tile, _delta, ((do, wide),), ((Site.DO, ()),))
    total, exact, *mass = (
        x.reshape(-1) for x in _delta_from_p_dp(ops, setup, head, q, k, v, mask, lse, do, sink)
    )
    if mass:
        total, exact = (
            ops.multiply(x, reciprocal(ops.xp, l))
            for x, l in zip((total, exact), mass, strict=True)
        )
    delta = at(Site.DELTA, total, exact)
    return delta, at.seen()


def _delta_from_p_dp(
    ops: Ops,
    setup: Setup,
    head: Index,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    lse: Array,
    do: Array,
    sink: Array | None,
) -> tuple[Array, ...]:
    """Return rowsum(P dP) of a head by query tile, and for CENTRED also rowsum(P).

    Each sum is returned twice, (query tiles, block_q). The first is added by DELTA's accumulator.
    The second is too, unless an Exact() injection at DELTA needs it in binary64. Nothing is
    recorded here, since `backward` has the same events and records them.
    """
    q_tiles, do_tiles, lse_tiles = (in_tiles(x, setup.block_q) for x in (q, do, lse))
    k_tiles, v_tiles = in_tiles(k, setup.block_k), in_tiles(v, setup.block_k)
    masks = mask_tiles(setup, mask)

    def query_tile(carry: None, i: Index, x: tuple[Array, ...]) -> tuple[None, tuple[Array, ...]]:
        """Return the sums of query tile i over all key tiles."""

        def key_tile(
            sums: tuple[Array, ...], j: Index, y: tuple[Array, ...]
        ) -> tuple[tuple[Array, ...], None]:
            """Return the sums after key tile j."""
            tile = tile_at(ops, setup, head, i, j, y[2] if masks is not None else None, None)

            def compute() -> tuple[tuple[Array, ...], None]:
                at = events_at(ops, setup, tile, silent=True, sink=sink)
                return (
                    algorithm.delta_tile(at, setup.of_scores, x[0], y[0], y[1], x[1], x[2], sums),
                    None,
                )

            return if_any(ops, setup, tile, masks, compute, sums)

        keys = (k_tiles, v_tiles) if masks is None else (k_tiles, v_tiles, x[3])
        zeros = (ops.xp.zeros_like(x[2]),) * (
            4 if setup.plan.delta_from is DeltaFrom.CENTRED else 2
        )
        return None, ops.scan(key_tile, zeros, keys)[0]

    rows = (q_tiles, do_tiles, lse_tiles)
    scanned = rows if masks is None else (*rows, masks)
    sums: tuple[Array, ...] = ops.scan(query_tile, None, scanned)[1]
    return sums


def round_query_gradients(at: Events, setup: Setup, dq: Array) -> Array:
    """Return the final dQ of a head, (T, H): multiplied by its factor and rounded.

    at: the hook of the whole head.
    """
    if setup.plan.gradient_scale is ScaleOfGradient.RESULT:
        dq = algorithm.register(
            at, Site.SDQ, at.ops.multiply(dq, LN_2 if setup.plan.scaled_keys else setup.factor)
        )
    return at(Site.DQ_OUT, dq)


def round_key_gradients(
    ops: Ops, setup: Setup, head: Index, dk: Array, dv: Array
) -> tuple[tuple[Array, Array], Seen]:
    """Return the final dK and dV of one key head, and what was recorded.

    dk, dv: (group, S, features), the gradients of the query heads that share the key head. They are
    added up in ascending order in binary64, so that only the output is rounded. The sum begins at
    the first head and not at 0, so -0 stays -0 in a group of one head.
    """
    whole = whole_head(ops, setup, head, None, setup.key_heads)
    return computed(ops, setup, whole, _of_keys, ((dk, dv),), ((Site.DK, Site.DV),))


def _of_keys(at: Events, setup: Setup, sums: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return the final dK and dV of a key head from the sums of its query heads."""
    dk, dv = (functools.reduce(operator.add, x) for x in sums)
    return rounded_key_gradients(at, setup, dk, dv)


def rounded_key_gradients(at: Events, setup: Setup, dk: Array, dv: Array) -> tuple[Array, Array]:
    """Return the final dK and dV, (S, features): dK multiplied by its factor, both rounded."""
    if setup.plan.gradient_scale is ScaleOfGradient.RESULT:
        dk = algorithm.register(at, Site.SDK, at.ops.multiply(dk, setup.factor))
    return at(Site.DK_OUT, dk), at(Site.DV_OUT, dv)


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
