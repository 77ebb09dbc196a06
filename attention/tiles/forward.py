"""The forward of one attention head: the loop over its tiles, for every engine.

The equations of a tile are in `attention.algorithm`, and the setup and tiles in `tiles.loops`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from roundscope.attention import algorithm
from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import KeyOrder, Sinks
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.softmax.flushed import is_due
from roundscope.attention.softmax.sinks import sink_logit
from roundscope.attention.softmax.softcap import factor
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
from roundscope.attention.tiles.records import (
    AnyState,
    FlushedState,
    Inputs,
    Results,
    State,
)
from roundscope.emu.backends.ops import Array, Ops, mapped
from roundscope.events.place import Index
from roundscope.events.recorder import Seen, merged

_STATE = (Site.M, Site.L, Site.O)  # the events whose results a state has
_OPERANDS = ((Site.Q, Site.QS), (Site.K, Site.KS), Site.V)


class _Queries(NamedTuple):
    """Tiles of queries, or one of them: q, its part of the mask and of the bias, and the sinks of
    its rows.
    """

    q: Array
    mask: Array | None
    bias: Array | None
    sinks: Array | None


class _Keys(NamedTuple):
    """Tiles of keys, or one of them: k, v, its part of a query tile's mask and bias, and the scales
    of k.
    """

    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    scales: Array | None


def forward(
    ops: Ops, setup: Setup, head: Index, inputs: Inputs
) -> tuple[Results, dict[str, Seen | None]]:
    """Return the forward of one head, and what was recorded of its "tiles" and of the "whole".

    For each query tile there is a loop over the key tiles in the plan's order. Tiles in which no
    score exists are skipped, so they change nothing, even if V is infinite.

    head: the head's flat index, batch entry * heads + head.

    The results have padded rows. A row that sees no key has output 0 and L = -inf. In a call with
    sinks every row sees its sink. A row that sees no key then has L = sink, and output 0 if V is
    finite in the tiles that its query tile computes; with an infinite V, 0 times infinity is NaN.
    If every tile is skipped, what was recorded of tiles is None under NumPy.
    """
    xp, mask, sink = ops.xp, inputs.mask, inputs.sink
    features = inputs.v.shape[1]
    scales = algorithm.key_scales(ops, setup.plan, inputs.k)
    keys = _Keys(
        in_tiles(inputs.k, setup.block_k),
        in_tiles(inputs.v, setup.block_k),
        None,
        None,
        None if scales is None else in_tiles(scales, setup.block_k),
    )
    masks, biases = mask_tiles(setup, mask), mask_tiles(setup, inputs.bias)

    descending = setup.plan.key_order is KeyOrder.DESCENDING
    masked_first = setup.plan.key_order is KeyOrder.MASKED_FIRST and setup.has_structure
    at = whole_events(ops, setup, head, mask, sink)
    sinks = sink_logit(at, factor(at, setup.of_scores), inputs.q.shape[0])
    is_first = sinks is not None and setup.plan.sinks in (Sinks.FIRST, Sinks.KEY)
    splits = tuple(splits_of(setup.plan, setup.key_tiles))

    def query_tile(
        carry: None, i: Index, x: _Queries
    ) -> tuple[None, tuple[tuple[AnyState, ...], Any]]:
        """Return the state of query tile i after all key tiles, and what was recorded of them."""
        first_masked = masked_tiles_first(xp, setup, i) if masked_first else None

        def one_split(own: Sequence[int]) -> tuple[AnyState, Seen]:
            """Return the same for the key tiles of a split, by their numbers."""
            first, last = own[0], own[-1] + 1
            has_gaps = last - first > len(own)
            order = xp.asarray(own[::-1] if descending else own) if has_gaps else first_masked
            turned = descending and order is None

            def key_tile(state: AnyState, n: Index, y: _Keys) -> tuple[AnyState, Seen]:
                """Return the state after the n-th key tile, y, and what was recorded of it."""
                j = last - 1 - n if turned else first + n if order is None else order[n]
                tile = tile_at(ops, setup, head, i, j, y.mask, state.m > -xp.inf)

                if isinstance(state, FlushedState):
                    tile = replace(tile, is_flushed=is_due(setup.plan, state.kept))

                def compute() -> tuple[AnyState, Seen]:
                    given = state, (x.q, y.k, y.v, *(() if y.scales is None else (y.scales,)))
                    sites = _STATE, _OPERANDS
                    return computed(ops, setup, tile, _step, given, sites, bias=y.bias)

                return if_any(ops, setup, tile, masks, compute, state)

            state = algorithm.start(xp, setup.plan, setup.block_q, features, x.sinks)
            taken = slice(first, last) if order is None else order
            mine = mapped(
                lambda x: None if x is None else x[taken], keys._replace(mask=x.mask, bias=x.bias)
            )
            state, seen = ops.scan(key_tile, state, backwards(mine) if turned else mine)
            if order is not None:
                seen = in_order(xp, order, seen)
            return state, backwards(seen) if turned else seen

        states, seen = zip(*map(one_split, splits), strict=True)
        every = joined(xp, seen, list(map(len, splits)))
        if setup.plan.split_count:
            every = in_order(xp, xp.asarray([j for own in splits for j in own]), every)
        return None, (states, every)

    queries = in_tiles(inputs.q, setup.block_q)
    own_sinks = in_tiles(sinks, setup.block_q) if is_first else None
    _, (states, seen) = ops.scan(query_tile, None, _Queries(queries, masks, biases, own_sinks))
    # (query tiles, rows of a tile, ...) -> (rows, ...); an entry per query tile stays as it is
    whole = [mapped(lambda x: x.reshape(-1, *x.shape[2:]), state) for state in states]
    if not setup.plan.split_tiles:
        later = () if sinks is None or is_first else (sinks,)
        sites = _STATE, (Site.SINK,) * len(later)
        results, seen_last = computed(ops, setup, at.tile, _finish, (whole[0], later), sites, sink)
        of_whole = at.seen() | seen_last
    else:
        results, of_whole = _combined(ops, setup, head, mask, at, whole)
    is_blind = setup.is_causal and setup.shift < 0  # whether rows stand before the first key
    if masks is not None or setup.plan.window or setup.queries % setup.block_q or is_blind:
        results = algorithm.without_rows_of_no_key(at, *results)
    return results, {"tiles": seen, "whole": of_whole}


def _step(at: Events, setup: Setup, state: AnyState, operands: tuple[Array, ...]) -> AnyState:
    """Return the state after a key tile; operands: q, k and v of the tile, and scales of k."""
    return algorithm.forward_tile(at, setup.of_scores, state, *operands)


def _finish(at: Events, setup: Setup, state: AnyState, sinks: tuple[Array, ...]) -> Results:
    """Return the results of a head from its state; sinks: the sink that is added now, if any."""
    rows = at.ops.xp.arange(state.m.shape[0])
    apart = rows < setup.block_q if has_first_tile_apart(setup) else None
    return algorithm.finish(at, setup.of_scores, state, apart, *sinks, of_output=setup.of_output)


def has_first_tile_apart(setup: Setup) -> bool:
    """Return whether the rows of the first query tile divide by l before the rounding LANES."""
    return setup.plan.first_tile_apart and setup.query_tiles > 1


def _combined(
    ops: Ops, setup: Setup, head: Index, mask: Array | None, at: Events, states: list[State]
) -> tuple[Results, Seen]:
    """Return the combined results of all splits of the keys, and what was recorded.

    A row that sees no key of a split has no events in that split.

    at      the hook of the whole head
    states  for each split, the state of all rows after its last tile
    """
    hooks, parts = [], []
    for state in states:
        own = whole_events(ops, setup, head, mask)
        rows = own.tile.rows & (state.m > -ops.xp.inf)
        hooks.append(own := replace(own, tile=replace(own.tile, rows=rows)))
        parts.append((own, *algorithm.finish_split(own, setup.of_scores, state, setup.of_output)))
    results = algorithm.combine(at, parts)
    return results, counted_together(ops.xp, [own.seen() for own in (*hooks, at)])


def masked_tiles_first(xp: ModuleType, setup: Setup, i: Index) -> Array:
    """Return the order of the key tiles for query tile i, as an array of their numbers.

    The tiles that causality or a window cuts come first, then the others, each in ascending order.
    """
    cut = cut_by(setup.is_causal, setup.plan.window)
    is_cut = cut is not None and cut(*bounds(setup, i, xp.arange(setup.key_tiles)))
    return xp.argsort(xp.where(is_cut, 0, 1), stable=True)


def splits_of(plan: Plan, key_tiles: int) -> Iterator[Sequence[int]]:
    """Yield the numbers of the key tiles of each split, ascending.

    FlashAttention-2 splits the keys over thread blocks of a GPU if heads are few, into parts that
    are next to each other. cuDNN deals the tiles to its thread blocks in turn. In a plan without
    splits, one split has all tiles.
    """
    size = plan.split_tiles or key_tiles
    parts = [range(key_tiles)[first : first + size] for first in range(0, key_tiles, size)]
    count = min(plan.split_count or len(parts), len(parts))
    yield from ([j for part in parts[own::count] for j in part] for own in range(count))


def in_order(xp: ModuleType, numbers: Array, seen: Any) -> Any:
    """Return what was recorded of tiles, whose first axis has these numbers, in their order."""
    back = xp.argsort(numbers)
    return mapped(lambda x: None if x is None else x[back], seen)


def joined(xp: ModuleType, parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return what was recorded of the tiles of all splits, joined along the tiles.

    parts  what was recorded in each split: structures of arrays whose first axis is the key tile;
           None stands for zeros, in a split of which no tile was computed
    sizes  key tiles of each split
    """

    def one(*arrays: Array | None) -> Array | None:
        like = next((x for x in arrays if x is not None), None)
        if like is None or len(arrays) == 1:
            return like

        def there(x: Array | None, size: int) -> Array:
            return xp.zeros((size, *like.shape[1:]), like.dtype) if x is None else x

        return xp.concatenate(list(map(there, arrays, sizes)))

    return mapped(one, *parts)


def counted_together(xp: ModuleType, seen: Sequence[Seen]) -> Seen:
    """Return the summaries of the events that each split has, added up over the splits."""
    found: Seen = {}
    for part in seen:
        for name, new in part.items():
            old = found.get(name)
            if old is not None:
                new = merged(xp, old, new) if isinstance(new, tuple) else old + new
            found[name] = new
    return found
