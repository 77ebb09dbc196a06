"""One attention head, forward and backward: the loops over tiles, for every engine.

Arrays are padded to whole tiles; entries beyond T queries or S keys are masked, and no event counts
them.
"""

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention import algorithm
from roundscope.attention.events.hook import Events
from roundscope.attention.events.recorder import Record, Recorder
from roundscope.attention.injection import Injection
from roundscope.attention.plans.choices import DeltaFrom, KeyOrder, ScaleOfGradient, Sinks
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import KEY_SITES, Site
from roundscope.attention.softmax.exponents import base2_scale
from roundscope.attention.softmax.flushed import is_due
from roundscope.attention.softmax.row_sums import reciprocal
from roundscope.attention.softmax.sinks import sink_gradient, sink_logit
from roundscope.attention.softmax.softcap import factor
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.orders import Pass, cut_by, merged, passes
from roundscope.attention.tiles.splits import counted_together, joined, splits_of
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.logarithms import LN_2
from roundscope.emu.rounding.modes import BINARY32

ROOTED = {Site.Q: Site.QS, Site.K: Site.KS}
Seen = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is fixed for a whole call: sizes, tiles, plan, and what is asked beside the result.

    scale  of the scores, in binary32 unless SCALED is wider;  whole_scale: before that rounding
    """

    plan: Plan
    queries: int
    keys: int
    block_q: int
    block_k: int
    heads: int
    key_heads: int
    scale: float
    whole_scale: float
    is_causal: bool
    inject: tuple[Injection, ...] = ()
    record: Record | None = None

    @property
    def of_scores(self) -> float:
        """What the scores are multiplied with."""
        return 1.0 if self.plan.scale_roots else self.scale

    @property
    def factor(self) -> float:
        """What multiplies gradients that leave: the scale, or its root, in binary32, where q and k
        are multiplied with that.
        """
        return (
            float(np.float32(math.sqrt(self.whole_scale))) if self.plan.scale_roots else self.scale
        )

    @property
    def has_structure(self) -> bool:
        """Whether scores are missing without a mask: above the diagonal, or outside a window."""
        return self.is_causal or self.plan.window > 0

    @property
    def query_tiles(self) -> int:
        return -(-self.queries // self.block_q)

    @property
    def key_tiles(self) -> int:
        return -(-self.keys // self.block_k)

    @property
    def every(self) -> int:
        """Of `Record`: one tile in so many is looked at, both ways."""
        return 1 if self.record is None else self.record.every


def events_at(
    ops: Ops, setup: Setup, tile: Tile, *, silent: bool = False, sink: Array | None = None
) -> Events:
    """The hook of a tile's events; silent: without a record; sink: the head's."""
    recorder = None if silent or setup.record is None else Recorder(ops, tile, setup.record)
    return Events(ops, setup.plan, tile, setup.inject, recorder, sink)


def _whole(ops: Ops, setup: Setup, head: Any, mask: Array | None, heads: int | None = None) -> Tile:
    """The head as one tile, for events that are not repeated: inputs, normalisation, outputs.

    heads: per batch entry, where they are not the query heads
    """
    xp = ops.xp
    t = xp.arange(setup.query_tiles * setup.block_q)
    s = xp.arange(setup.key_tiles * setup.block_k)
    rows, keys = t < setup.queries, s < setup.keys
    seeing = rows if mask is None else rows & mask.any(axis=1)
    if setup.plan.window:
        near = _in_window(setup, t, s) & keys
        seeing = rows & (near if mask is None else near & mask).any(axis=1)
    if setup.plan.sinks is not Sinks.NONE:  # a sink is there for every row
        seeing = rows
    nothing = xp.zeros((1, 1), dtype=bool)
    tiles, sizes = (setup.query_tiles, setup.key_tiles), (setup.block_q, setup.block_k)
    return Tile(
        head=head,
        heads=heads or setup.heads,
        i=0,
        j=0,
        row0=0,
        key0=0,
        mask=nothing,
        rows=seeing,
        rescaled=rows,
        keys=keys,
        sample=sample.of_head(xp, setup.every, tiles, sizes, head) if setup.every > 1 else None,
    )


def _in_window(setup: Setup, t: Array, s: Array) -> Array:
    """(queries, keys): whether a key is among the nearest `window`, the query's own included, on
    its side or, not causal, on both.
    """
    gap = t[:, None] - s[None, :]
    return (gap < setup.plan.window) & (gap > -setup.plan.window)


def tile_at(
    ops: Ops, setup: Setup, head: Any, i: Any, j: Any, mask: Array | None, before: Array | None
) -> Tile:
    """Tile (i, j); mask: its part of the caller's mask; before: rows that had a key earlier (None:
    all, as in the backward).
    """
    xp = ops.xp
    row0, key0 = i * setup.block_q, j * setup.block_k
    t, s = row0 + xp.arange(setup.block_q), key0 + xp.arange(setup.block_k)
    here, keys = t < setup.queries, s < setup.keys
    exists = here[:, None] & keys[None, :]
    active = row0 < setup.queries  # and some key, or there would be no such tile
    if setup.is_causal:
        exists = exists & (s[None, :] <= t[:, None])
        last = xp.minimum(row0 + setup.block_q, setup.queries) - 1
        here, keys, active = here & (key0 <= t), keys & (s <= last), key0 <= last
    if mask is not None:
        exists = exists & mask
    if setup.plan.window:
        exists = exists & _in_window(setup, t, s)
    if mask is not None or setup.plan.window:
        here, keys = exists.any(axis=1), exists.any(axis=0)
        active = here.any()
    before = here if before is None else before
    if setup.plan.sinks in (Sinks.FIRST, Sinks.KEY):
        before = before & (t < setup.queries)  # all rows begin with a sink, but not those that pad
    tiles, cut = (setup.query_tiles, setup.key_tiles), cut_by(setup.is_causal, setup.plan.window)
    return Tile(
        head=head,
        heads=setup.heads,
        i=i,
        j=j,
        row0=row0,
        key0=key0,
        mask=exists,
        rows=(before | here) & active,
        rescaled=before & active,
        keys=keys,
        sample=sample.of_tile(xp, setup.every, tiles, head, i, j) if setup.every > 1 else None,
        is_cut=False if cut is None else cut(*_bounds(setup, i, j)),
    )


def _if_any(
    ops: Ops,
    setup: Setup,
    tile: Tile,
    masks: Array | None,
    compute: Callable[[], Any],
    state: Any,
    taken: Any = None,
) -> Any:
    """What a tile computes, or the state and zeros where nothing in it exists, which can only be so
    under a mask, or it is not taken.
    """
    if not setup.has_structure and masks is None:
        return compute() if taken is None else ops.when(taken, compute, state)
    exists = tile.mask.any()
    return ops.when(exists if taken is None else exists & taken, compute, state)


def _bounds(setup: Setup, i: Any, j: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The first row and the row behind the last of query tile i, and the same of key tile j."""
    return (i * setup.block_q, (i + 1) * setup.block_q), (
        j * setup.block_k,
        (j + 1) * setup.block_k,
    )


def _tiles(x: Array, block: int) -> Array:
    return x.reshape(-1, block, *x.shape[1:])


def _backwards(x: Any) -> Any:
    """Arrays, tuples and dicts of them, with their first axis turned round."""
    if isinstance(x, dict):
        return {name: _backwards(part) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(_backwards(part) for part in x)
    return None if x is None else x[::-1]


def _reordered(x: Any, order: Array) -> Any:
    """Arrays, tuples and dicts of them, with their first axis in another order."""
    if isinstance(x, dict):
        return {name: _reordered(part, order) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(_reordered(part, order) for part in x)
    return None if x is None else x[order]


def masked_tiles_first(xp: Any, setup: Setup, i: Any) -> Array:
    """The key tiles of query tile i: those that causality or a window cuts, then the others, each
    ascending.
    """
    cut = cut_by(setup.is_causal, setup.plan.window)
    is_cut = cut is not None and cut(*_bounds(setup, i, xp.arange(setup.key_tiles)))
    return xp.argsort(xp.where(is_cut, 0, 1), stable=True)


def _mask_tiles(setup: Setup, mask: Array | None) -> Array | None:
    """(query tiles, key tiles, block_q, block_k)."""
    if mask is None:
        return None
    parts = mask.reshape(setup.query_tiles, setup.block_q, setup.key_tiles, setup.block_k)
    return parts.transpose(0, 2, 1, 3)


def round_inputs(ops: Ops, setup: Setup, head: Any, site: Site, x: Array) -> tuple[Array, Seen]:
    """The event of one input tensor, or KC, of K rounded: (rows, features), padded."""
    heads = setup.key_heads if site in KEY_SITES else setup.heads
    at = events_at(ops, setup, _whole(ops, setup, head, None, heads))
    if site is Site.KC:  # of a product in binary32
        x = ops.round(ops.multiply(x, base2_scale(ops, setup.plan, setup.scale)), BINARY32, None)
    rounded = at(site, x)
    if setup.plan.scale_roots and site in ROOTED:
        rounded = at(ROOTED[site], ops.multiply(rounded, setup.factor))
    return rounded, at.seen()


def forward(
    ops: Ops,
    setup: Setup,
    head: Any,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    sink: Array | None = None,
) -> tuple[tuple[Array, Array, Array], dict[str, Seen]]:
    """(output, output before its last rounding, L) of one head, and what was seen, by tile and
    whole. sink: the head's, a scalar.
    """
    xp = ops.xp
    q_tiles = _tiles(q, setup.block_q)
    k_tiles = _tiles(k, setup.block_k)
    v_tiles = _tiles(v, setup.block_k)
    masks = _mask_tiles(setup, mask)

    descending = setup.plan.key_order is KeyOrder.DESCENDING
    masked_first = setup.plan.key_order is KeyOrder.MASKED_FIRST and setup.has_structure
    at = whole_events(ops, setup, head, mask, sink)
    sinks = sink_logit(at, factor(at, setup.of_scores), q.shape[0])
    is_first = sinks is not None and setup.plan.sinks in (Sinks.FIRST, Sinks.KEY)

    splits = tuple(splits_of(setup.plan, setup.key_tiles))

    def query_tile(carry: None, i: Any, x: tuple[Array, ...]) -> tuple[None, Any]:
        order = masked_tiles_first(xp, setup, i) if masked_first else None

        def one_split(first: int, last: int) -> tuple[Any, Any]:
            def key_tile(state: Any, n: Any, y: tuple[Array, ...]) -> tuple[Any, Seen]:
                j = last - 1 - n if descending else first + n if order is None else order[n]
                tile = tile_at(
                    ops, setup, head, i, j, y[2] if masks is not None else None, state[0] > -xp.inf
                )

                if setup.plan.flushed_tiles:
                    tile = replace(tile, is_flushed=is_due(setup.plan, state[3]))

                def compute() -> tuple[Any, Seen]:
                    at = events_at(ops, setup, tile)
                    new = algorithm.forward_tile(at, setup.of_scores, state, x[0], y[0], y[1])
                    return new, at.seen()

                return _if_any(ops, setup, tile, masks, compute, state)

            state = algorithm.start(
                xp, setup.plan, setup.block_q, v.shape[1], x[-1] if is_first else None
            )
            keys = (k_tiles, v_tiles) if masks is None else (k_tiles, v_tiles, x[1])
            keys = tuple(part[first:last] if order is None else part[order] for part in keys)
            state, seen = ops.scan(key_tile, state, _backwards(keys) if descending else keys)
            if order is not None:
                seen = _reordered(seen, xp.argsort(order))
            return state, _backwards(seen) if descending else seen

        states, seen = zip(*(one_split(*bounds) for bounds in splits), strict=True)
        return None, (states, joined(xp, seen, [last - first for first, last in splits]))

    rows = (q_tiles,) if masks is None else (q_tiles, masks)
    _, (states, seen) = ops.scan(
        query_tile, None, (*rows, _tiles(sinks, setup.block_q)) if is_first else rows
    )
    whole = [tuple(_rows_of_tiles(part) for part in state) for state in states]
    if not setup.plan.split_tiles:
        has_apart = setup.plan.first_tile_apart and setup.query_tiles > 1
        apart = xp.arange(q.shape[0]) < setup.block_q if has_apart else None
        results = algorithm.finish(
            at, setup.of_scores, whole[0], apart, None if is_first else sinks
        )
        of_whole = at.seen()
    else:
        results, of_whole = _combined(ops, setup, head, mask, at, whole)
    if masks is not None or setup.plan.window or setup.queries % setup.block_q:
        results = algorithm.without_rows_of_no_key(at, *results)
    return results, {"tiles": seen, "whole": of_whole}


def _rows_of_tiles(x: Any) -> Any:
    """(query tiles, rows, ...) -> (rows, ...), of arrays and tuples of them; (query tiles,)
    stays.
    """
    if isinstance(x, tuple):
        return tuple(_rows_of_tiles(part) for part in x)
    return x.reshape(-1, *x.shape[2:])


def _combined(
    ops: Ops, setup: Setup, head: Any, mask: Array | None, at: Events, states: list[algorithm.State]
) -> tuple[tuple[Array, Array, Array], Seen]:
    """The results of all splits of the keys together, and what was seen; a row without keys in a
    split has no events there.
    """
    hooks, parts = [], []
    for state in states:
        own = whole_events(ops, setup, head, mask)
        hooks.append(
            own := replace(
                own, tile=replace(own.tile, rows=own.tile.rows & (state[0] > -ops.xp.inf))
            )
        )
        parts.append((own, *algorithm.finish_split(own, setup.of_scores, state)))
    results = algorithm.combine(at, parts)
    return results, counted_together(ops.xp, [own.seen() for own in (*hooks, at)])


def backward(
    ops: Ops,
    setup: Setup,
    head: Any,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    wide: Array,
    lse: Array,
    do: Array,
    sink: Array | None = None,
) -> tuple[tuple[Array, Array, Array, Array], dict[str, Seen]]:
    """(dQ rounded, dK and dV before the rounding of the outputs, delta) of one head, and what was
    seen.
    """
    xp = ops.xp
    at = whole_events(ops, setup, head, mask)
    delta = deltas(ops, setup, head, at, q, k, v, mask, out, wide, lse, do, sink)
    q_tiles, do_tiles, lse_tiles, delta_tiles = (
        _tiles(x, setup.block_q) for x in (q, do, lse, delta)
    )
    k_tiles, v_tiles = _tiles(k, setup.block_k), _tiles(v, setup.block_k)
    masks = _mask_tiles(setup, mask)

    def one_pass(
        part: Pass, sums: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array, Array], Seen]:
        def key_tile(dq_tiles: Array, n: Any, y: tuple[Array, ...]) -> tuple[Array, Any]:
            j = setup.key_tiles - 1 - n if part.keys_down else n

            def query_tile(carry: Any, n: Any, x: tuple[Array, ...]) -> tuple[Any, Any]:
                i = setup.query_tiles - 1 - n if part.queries_down else n
                tile = tile_at(ops, setup, head, i, j, x[5] if masks is not None else None, None)

                def compute() -> tuple[Any, Seen]:
                    at = events_at(ops, setup, tile, sink=sink)
                    dq, dk, dv = algorithm.backward_tile(
                        at, setup.of_scores, x[0], y[0], y[1], x[1], x[2], x[3], x[4], *carry
                    )
                    return (dq, dk, dv), at.seen()

                taken = None if part.takes is None else part.takes(*_bounds(setup, i, j))
                (dq, dk, dv), seen = _if_any(
                    ops, setup, tile, masks, compute, (x[4], *carry), taken
                )
                return (dk, dv), (dq, seen)

            rows: tuple[Array, ...] = (q_tiles, do_tiles, lse_tiles, delta_tiles, dq_tiles)
            rows = rows if masks is None else (*rows, y[4])
            (dk, dv), later = ops.scan(
                query_tile, (y[2], y[3]), _backwards(rows) if part.queries_down else rows
            )
            dq_tiles, seen = _backwards(later) if part.queries_down else later
            return dq_tiles, (dk, dv, seen)

        columns = (
            (k_tiles, v_tiles, *sums[1:])
            if masks is None
            else (k_tiles, v_tiles, *sums[1:], masks.swapaxes(0, 1))
        )
        dq, later = ops.scan(key_tile, sums[0], _backwards(columns) if part.keys_down else columns)
        dk, dv, seen = _backwards(later) if part.keys_down else later
        return (dq, dk, dv), seen

    sums = xp.zeros_like(q_tiles), xp.zeros_like(k_tiles), xp.zeros_like(v_tiles)
    seen: Any = None
    for part in passes(setup.plan, setup.is_causal):
        sums, own = one_pass(part, sums)
        i, j = xp.arange(setup.query_tiles), xp.arange(setup.key_tiles)[:, None]
        seen = (
            own
            if seen is None or part.takes is None
            else merged(xp, part.takes(*_bounds(setup, i, j)), own, seen)
        )
    dq, dk, dv = sums
    dq = round_query_gradients(at, setup, dq.reshape(q.shape))
    return (dq, dk.reshape(k.shape), dv.reshape(v.shape), delta), {
        "tiles": seen,
        "whole": at.seen(),
    }


def whole_events(
    ops: Ops, setup: Setup, head: Any, mask: Array | None, sink: Array | None = None
) -> Events:
    """The hook of events that a head has once."""
    return events_at(ops, setup, _whole(ops, setup, head, mask), sink=sink)


def sink_gradients(
    ops: Ops, setup: Setup, head: Any, sink: Array, lse: Array, delta: Array
) -> tuple[Array, Seen]:
    """The gradient of a head's sink, a sum over its rows by halves in binary64, and what was
    seen.
    """
    at = whole_events(ops, setup, head, None, sink)
    return by_halves(ops.xp, sink_gradient(at, lse, delta)), at.seen()


def by_halves(xp: Any, x: Array) -> Array:
    """The sum over the first axis, in binary64: its halves are added to each other until one entry
    is left, on every engine alike.
    """
    size = 1 << (x.shape[0] - 1).bit_length()
    x = xp.concatenate([x, xp.zeros((size - x.shape[0], *x.shape[1:]))])
    while (half := x.shape[0] // 2) > 0:
        x = x[:half] + x[half:]
    return x[0]


def round_query_gradients(at: Events, setup: Setup, dq: Array) -> Array:
    """dQ as it leaves."""
    if setup.plan.gradient_scale is ScaleOfGradient.RESULT:
        dq = algorithm.register(
            at, Site.SDQ, at.ops.multiply(dq, LN_2 if setup.plan.scaled_keys else setup.factor)
        )
    return at(Site.DQ_OUT, dq)


def deltas(
    ops: Ops,
    setup: Setup,
    head: Any,
    at: Events,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    wide: Array,
    lse: Array,
    do: Array,
    sink: Array | None = None,
) -> Array:
    """delta of all rows, by the plan's operands."""
    if setup.plan.delta_from is DeltaFrom.OUT:
        return algorithm.delta(at, do, out)
    if setup.plan.delta_from is DeltaFrom.WIDE_O:
        return algorithm.delta(at, do, wide)
    total, exact, *mass = (
        x.reshape(-1) for x in _delta_from_p_dp(ops, setup, head, q, k, v, mask, lse, do, sink)
    )
    if mass:
        total, exact = (
            ops.multiply(x, reciprocal(ops.xp, l))
            for x, l in zip((total, exact), mass, strict=True)
        )
    return at(Site.DELTA, total, exact)


def _delta_from_p_dp(
    ops: Ops,
    setup: Setup,
    head: Any,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    lse: Array,
    do: Array,
    sink: Array | None,
) -> tuple[Array, ...]:
    """rowsum(P dP), and for CENTRED rowsum(P), by query tile: each by DELTA's accumulator, and as
    an Exact() injection there wants.
    """
    q_tiles, do_tiles, lse_tiles = (_tiles(x, setup.block_q) for x in (q, do, lse))
    k_tiles, v_tiles = _tiles(k, setup.block_k), _tiles(v, setup.block_k)
    masks = _mask_tiles(setup, mask)

    def query_tile(carry: None, i: Any, x: tuple[Array, ...]) -> tuple[None, Any]:
        def key_tile(sums: Any, j: Any, y: tuple[Array, ...]) -> tuple[Any, None]:
            tile = tile_at(ops, setup, head, i, j, y[2] if masks is not None else None, None)

            def compute() -> tuple[Any, None]:
                at = events_at(ops, setup, tile, silent=True, sink=sink)
                return (
                    algorithm.delta_tile(at, setup.of_scores, x[0], y[0], y[1], x[1], x[2], sums),
                    None,
                )

            return _if_any(ops, setup, tile, masks, compute, sums)

        keys = (k_tiles, v_tiles) if masks is None else (k_tiles, v_tiles, x[3])
        zeros = (ops.xp.zeros_like(x[2]),) * (
            4 if setup.plan.delta_from is DeltaFrom.CENTRED else 2
        )
        return None, ops.scan(key_tile, zeros, keys)[0]

    rows = (q_tiles, do_tiles, lse_tiles)
    return ops.scan(query_tile, None, rows if masks is None else (*rows, masks))[1]


def round_key_gradients(
    ops: Ops, setup: Setup, head: Any, dk: Array, dv: Array
) -> tuple[tuple[Array, Array], Seen]:
    """dK and dV of one key head from those of its query heads: (group, keys, features), added in
    ascending order.

    The sum over the group is in binary64: the rounding of the outputs is its only one.
    """
    at = events_at(ops, setup, _whole(ops, setup, head, None, setup.key_heads))
    dk, dv = functools.reduce(operator.add, dk), functools.reduce(operator.add, dv)
    if setup.plan.gradient_scale is ScaleOfGradient.RESULT:
        dk = algorithm.register(at, Site.SDK, ops.multiply(dk, setup.factor))
    return (at(Site.DK_OUT, dk), at(Site.DV_OUT, dv)), at.seen()
