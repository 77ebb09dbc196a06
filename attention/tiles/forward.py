"""The forward of one attention head: the loop over its tiles, for every engine.

The equations of a tile are in `attention.algorithm`, and the setup and tiles in `tiles.loops`.
"""

from dataclasses import replace
from types import ModuleType
from typing import Any

from roundscope.attention import algorithm
from roundscope.attention.algorithm import State
from roundscope.attention.events.hook import Events
from roundscope.attention.events.recorder import Seen
from roundscope.attention.plans.choices import KeyOrder, Sinks
from roundscope.attention.sites import Site
from roundscope.attention.softmax.flushed import is_due
from roundscope.attention.softmax.sinks import sink_logit
from roundscope.attention.softmax.softcap import factor
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.loops import (
    Setup,
    backwards,
    bounds,
    computed,
    if_any,
    in_tiles,
    mask_tiles,
    tile_at,
    whole_events,
)
from roundscope.attention.tiles.orders import cut_by
from roundscope.attention.tiles.splits import counted_together, joined, splits_of
from roundscope.emu.backends.ops import Array, Ops


def forward(
    ops: Ops,
    setup: Setup,
    head: Index,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    sink: Array | None = None,
) -> tuple[tuple[Array, Array, Array], dict[str, Seen | None]]:
    """Return the forward of one head, and what was recorded of its "tiles" and of the "whole".

    For each query tile there is a loop over the key tiles in the plan's order. Tiles in which no
    score exists are skipped, so they change nothing, even if V is infinite.

    head     the head's flat index, batch entry * heads + head
    q, k, v  (T, H), (S, H) and (S, Hv), rounded by their events and padded to whole tiles
    mask     (T, S) of bool, padded with False, or None
    sink     the logit of the head's sink, a scalar, or None

    The results are the output (T, Hv), the output before its last rounding, and L (T,), all with
    padded rows. A row that sees no key has output 0 and L = -inf. In a call with sinks every row
    sees its sink. A row that sees no key then has L = sink, and output 0 if V is finite in the
    tiles that its query tile computes; with an infinite V, 0 times infinity is NaN. If every tile
    is skipped, what was recorded of tiles is None under NumPy.
    """
    xp = ops.xp
    q_tiles = in_tiles(q, setup.block_q)
    k_tiles = in_tiles(k, setup.block_k)
    v_tiles = in_tiles(v, setup.block_k)
    masks = mask_tiles(setup, mask)

    descending = setup.plan.key_order is KeyOrder.DESCENDING
    masked_first = setup.plan.key_order is KeyOrder.MASKED_FIRST and setup.has_structure
    at = whole_events(ops, setup, head, mask, sink)
    sinks = sink_logit(at, factor(at, setup.of_scores), q.shape[0])
    is_first = sinks is not None and setup.plan.sinks in (Sinks.FIRST, Sinks.KEY)

    sites = (
        (Site.M, Site.L, Site.O),
        ((Site.Q, Site.QS), (Site.K, Site.KS), Site.V),
    )
    splits = tuple(splits_of(setup.plan, setup.key_tiles))

    def query_tile(
        carry: None, i: Index, x: tuple[Array, ...]
    ) -> tuple[None, tuple[tuple[State, ...], Any]]:
        """Return the state of query tile i after all key tiles, and what was recorded of them."""
        order = masked_tiles_first(xp, setup, i) if masked_first else None

        def one_split(first: int, last: int) -> tuple[State, Seen]:
            """Return the same for the key tiles from `first` to `last` - 1."""

            def key_tile(state: State, n: Index, y: tuple[Array, ...]) -> tuple[State, Seen]:
                """Return the state after the n-th key tile, y, and what was recorded of it."""
                j = last - 1 - n if descending else first + n if order is None else order[n]
                tile = tile_at(
                    ops, setup, head, i, j, y[2] if masks is not None else None, state[0] > -xp.inf
                )

                if setup.plan.flushed_tiles:
                    tile = replace(tile, is_flushed=is_due(setup.plan, state[3]))

                def compute() -> tuple[State, Seen]:
                    return computed(ops, setup, tile, _step, (state, (x[0], y[0], y[1])), sites)

                return if_any(ops, setup, tile, masks, compute, state)

            state = algorithm.start(
                xp, setup.plan, setup.block_q, v.shape[1], x[-1] if is_first else None
            )
            keys = (k_tiles, v_tiles) if masks is None else (k_tiles, v_tiles, x[1])
            keys = tuple(part[first:last] if order is None else part[order] for part in keys)
            state, seen = ops.scan(key_tile, state, backwards(keys) if descending else keys)
            if order is not None:
                seen = _reordered(seen, xp.argsort(order))
            return state, backwards(seen) if descending else seen

        states, seen = zip(*(one_split(*ends) for ends in splits), strict=True)
        return None, (states, joined(xp, seen, [last - first for first, last in splits]))

    rows = (q_tiles,) if masks is None else (q_tiles, masks)
    _, (states, seen) = ops.scan(
        query_tile, None, (*rows, in_tiles(sinks, setup.block_q)) if is_first else rows
    )
    whole = [tuple(_rows_of_tiles(part) for part in state) for state in states]
    if not setup.plan.split_tiles:
        later = () if sinks is None or is_first else (sinks,)
        results, seen_last = computed(
            ops,
            setup,
            at.tile,
            _finish,
            (whole[0], later),
            (sites[0], (Site.SINK,) * len(later)),
            sink,
        )
        of_whole = at.seen() | seen_last
    else:
        results, of_whole = _combined(ops, setup, head, mask, at, whole)
    is_blind = setup.is_causal and setup.shift < 0  # whether rows stand before the first key
    if masks is not None or setup.plan.window or setup.queries % setup.block_q or is_blind:
        results = algorithm.without_rows_of_no_key(at, *results)
    return results, {"tiles": seen, "whole": of_whole}


def _step(at: Events, setup: Setup, state: State, operands: tuple[Array, ...]) -> State:
    """Return the state after a key tile; operands: q, k and v of the tile."""
    return algorithm.forward_tile(at, setup.of_scores, state, *operands)


def _finish(
    at: Events, setup: Setup, state: State, sinks: tuple[Array, ...]
) -> tuple[Array, Array, Array]:
    """Return the results of a head from its state; sinks: the sink that is added now, if any."""
    rows = at.ops.xp.arange(state[0].shape[0])
    apart = rows < setup.block_q if has_first_tile_apart(setup) else None
    return algorithm.finish(at, setup.of_scores, state, apart, *sinks)


def has_first_tile_apart(setup: Setup) -> bool:
    """Return whether the rows of the first query tile divide by l before the rounding LANES."""
    return setup.plan.first_tile_apart and setup.query_tiles > 1


def _combined(
    ops: Ops, setup: Setup, head: Index, mask: Array | None, at: Events, states: list[State]
) -> tuple[tuple[Array, Array, Array], Seen]:
    """Return the combined results of all splits of the keys, and what was recorded.

    A row that sees no key of a split has no events in that split.

    at      the hook of the whole head
    states  for each split, the state of all rows after its last tile
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


def _rows_of_tiles(x: Any) -> Any:
    """Return arrays (query tiles, rows of a tile, ...), or tuples of them, as (rows, ...).

    Arrays with one entry per query tile, (query tiles,), are not changed.
    """
    if isinstance(x, tuple):
        return tuple(_rows_of_tiles(part) for part in x)
    return x.reshape(-1, *x.shape[2:])


def masked_tiles_first(xp: ModuleType, setup: Setup, i: Index) -> Array:
    """Return the order of the key tiles for query tile i, as an array of their numbers.

    The tiles that causality or a window cuts come first, then the others, each in ascending order.
    """
    cut = cut_by(setup.is_causal, setup.plan.window)
    is_cut = cut is not None and cut(*bounds(setup, i, xp.arange(setup.key_tiles)))
    return xp.argsort(xp.where(is_cut, 0, 1), stable=True)


def _reordered(x: Any, order: Array) -> Any:
    """Return arrays, or tuples and dicts of them, with their first axis in another order."""
    if isinstance(x, dict):
        return {name: _reordered(part, order) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(_reordered(part, order) for part in x)
    return None if x is None else x[order]
