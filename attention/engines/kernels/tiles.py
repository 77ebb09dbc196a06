"""The tiles that a program of a fused kernel walks over, their hooks, and which scores exist.

A tile is whole if all its scores exist, as in most tiles. Whole tiles have a loop of their own,
since they need no mask. What summarizes events has one loop, which compiles in less time.

In a call with a mask, programs read arrays of it beside their inputs. A tile without any score that
exists changes nothing, and programs pass over it. The arrays have int8 numbers, since kernels have
no arrays of bool in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup, events_at, tile_at
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.kernels.ops import kernel_ops
from roundscope.events.place import Index

State = TypeVar("State")  # the state that each tile updates: arrays, or tuples of them


class Exists(NamedTuple):
    """What exists of a tile that is not whole; None for what no event of the program asks for.

    scores  (queries, keys) of bool: the scores that are neither masked nor padding
    rows    (queries,) of bool: rows with such a score
    keys    (keys,) of bool: keys with such a score
    """

    scores: Array
    rows: Array | None
    keys: Array | None


class Masks(NamedTuple):
    """What exists of all tiles of all query heads.

    scores  (heads, T, S)
    rows    (heads, key tiles, T): whether a query sees a key of the tile
    keys    (heads, query tiles, S): whether a query of the tile sees the key
    """

    scores: Array
    rows: Array
    keys: Array

    @property
    def seeing(self) -> Array:
        """Return which queries see some key, (heads, T)."""
        return self.rows.max(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What a program reads of the masks.

    inputs  arrays, and what a program sees of each
    exists  (what it sees, number of the tile that it walks over) -> `Exists`
    """

    inputs: list[tuple[Array, pl.BlockSpec]]
    exists: Callable[[Sequence[Any], Index], Exists]


def masks(setup: Setup, mask: Array | None) -> Masks | None:
    """Return what exists where a mask (heads, T, S) of bool, causality and the sizes allow it.

    The result is None in a call without a mask.
    """
    if mask is None:
        return None
    heads, rows, keys = mask.shape
    t, s = jnp.arange(rows)[:, None], jnp.arange(keys)[None, :]
    here = (t < setup.queries) & (s < setup.keys)
    here = here & (s <= t) if setup.is_causal else here
    scores = (mask & here).astype(jnp.int8)
    by_row = scores.reshape(heads, rows, -1, setup.block_k).max(3).swapaxes(1, 2)
    return Masks(scores, by_row, scores.reshape(heads, -1, setup.block_q, keys).max(2))


def by_query(setup: Setup, found: Masks | None) -> Reader | None:
    """Return what programs read that own a tile of queries; None without a mask."""
    if found is None:
        return None
    heads_rows = pl.BlockSpec((None, setup.block_q, found.scores.shape[2]), lambda h, i: (h, i, 0))
    of_tiles = pl.BlockSpec((None, found.rows.shape[1], setup.block_q), lambda h, i: (h, 0, i))

    def exists(refs: Sequence[Any], j: Index) -> Exists:
        scores, rows = refs
        own = pl.ds(j * setup.block_k, setup.block_k)
        return Exists(scores[:, own] != 0, rows[j, :] != 0, None)

    return Reader(inputs=[(found.scores, heads_rows), (found.rows, of_tiles)], exists=exists)


def by_key(setup: Setup, found: Masks | None) -> Reader | None:
    """Return what programs read that own a tile of keys; None without a mask."""
    if found is None:
        return None
    columns = pl.BlockSpec((None, found.scores.shape[1], setup.block_k), lambda h, j: (h, 0, j))
    of_tiles = pl.BlockSpec((None, found.keys.shape[1], setup.block_k), lambda h, j: (h, 0, j))

    def exists(refs: Sequence[Any], i: Index) -> Exists:
        scores, keys = refs
        own = pl.ds(i * setup.block_q, setup.block_q)
        return Exists(scores[own, :] != 0, None, keys[i, :] != 0)

    return Reader(inputs=[(found.scores, columns), (found.keys, of_tiles)], exists=exists)


def if_any(exists: Exists | None, compute: Callable[[], State], state: State) -> State:
    """Return what a tile computes, or the state unchanged if no score of the tile exists."""
    if exists is None:
        return compute()
    some = exists.keys if exists.rows is None else exists.rows
    assert some is not None
    found: State = lax.cond(some.astype(jnp.int32).max() > 0, compute, lambda: state)
    return found


def reading(reader: Reader | None, refs: Sequence[Any]) -> Callable[[Index], Exists | None]:
    """Return a function from the number of a tile to what exists of it, None without a mask."""
    return (lambda _: None) if reader is None else partial(reader.exists, refs)


def head_number(setup: Setup, h: Array) -> Array:
    """Return the number of a head in random streams, injections and samples.

    h: the place of the head in the arrays of a kernel, or several places.
    """
    if setup.some is None:
        return h
    own = setup.some.own
    place, entry = lax.rem(h, jnp.full_like(h, len(own))), lax.div(h, jnp.full_like(h, len(own)))
    number = jnp.full_like(h, own[0])
    for n, head in enumerate(own[1:], 1):  # a kernel has no arrays but its arguments
        number = jnp.where(place == n, jnp.full_like(h, head), number)
    return number + entry * jnp.full_like(h, setup.some.step)


def _heads(setup: Setup) -> int:
    return setup.heads if setup.some is None else setup.some.heads


def walk(
    tile: Callable[[Array, State], State],
    first: Index,
    last: Index,
    state: State,
    is_down: bool = False,
) -> State:
    """Return the state after the tiles from `first` to `last` - 1, or in the other direction.

    `tile` is a function (number, state) -> state. Where no such tile is known to be, there is no
    loop.
    """
    if isinstance(first, int) and isinstance(last, int) and first >= last:
        return state
    first, last = jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32)
    ends = first + last - 1

    def step(n: Array, state: State) -> State:
        return tile(ends - n if is_down else n, state)

    found: State = lax.fori_loop(first, last, step, state)
    return found


def seen_tiles(setup: Setup, i: Array) -> Index:
    """Return how many key tiles some query of tile i sees; the others do not change the state."""
    if not setup.is_causal:
        return setup.key_tiles
    last = jnp.minimum((i + 1) * setup.block_q, setup.queries) - 1
    return jnp.minimum(lax.div(last, np.int32(setup.block_k)) + 1, np.int32(setup.key_tiles))


def whole_tiles(setup: Setup, i: Array, at_once: bool = False) -> Index:
    """Return how many key tiles, from the first on, are whole for query tile i.

    at_once: whether one loop runs over all tiles; none counts as whole then, unless all are
    """
    if at_once and not _are_whole(setup):
        return 0
    whole: Index = setup.keys // setup.block_k
    if setup.is_causal:
        seen = lax.div(i * setup.block_q + 1, np.int32(setup.block_k))
        whole = jnp.minimum(seen, np.int32(whole))
    if setup.queries % setup.block_q == 0:
        return whole
    ends_within = (i + 1) * setup.block_q <= setup.queries
    return jnp.where(ends_within, jnp.asarray(whole, jnp.int32), np.int32(0))


def _are_whole(setup: Setup) -> bool:
    tails = setup.queries % setup.block_q, setup.keys % setup.block_k
    return not setup.is_causal and not any(tails)


def query_tiles_that_see(setup: Setup, j: Array) -> tuple[Index, Index, Index]:
    """Return three numbers of query tiles, which divide those that see key tile j.

    They are the first query tile that sees some of the key tile, the first that sees all of it, and
    the one after the last that sees all of it.
    """
    first: Index = lax.div(j * setup.block_k, np.int32(setup.block_q)) if setup.is_causal else 0
    end: Index = setup.queries // setup.block_q
    whole: Index = 0
    if setup.is_causal:
        whole = lax.div((j + 1) * setup.block_k + setup.block_q - 2, np.int32(setup.block_q))
    if setup.keys % setup.block_k:
        ends_within = (j + 1) * setup.block_k <= setup.keys
        none = np.int32(setup.query_tiles)
        whole = jnp.where(ends_within, jnp.asarray(whole, jnp.int32), none)
    if isinstance(whole, int):
        return first, whole, end
    whole = jnp.minimum(whole, np.int32(setup.query_tiles))
    return first, whole, jnp.maximum(whole, np.int32(end))


def walk_queries(
    setup: Setup,
    j: Array,
    tile: Callable[..., State],
    state: State,
    walk: Callable[..., State],
    slices: int = 1,
    at_once: bool = False,
) -> State:
    """Return the state after all query tiles that see key tile j, in the plan's order.

    tile    a function (whether all scores of the tile exist, what `walk` gives it) -> state
    walk    a function with the arguments of `walk` of this module
    slices  into how many slices each tile is divided; if it is above 1, the number that `tile` gets
            is that of a slice
    at_once  whether one loop runs over all tiles, as in `whole_tiles`
    """
    first, whole, end = (n * slices for n in query_tiles_that_see(setup, j))
    if at_once and not _are_whole(setup):
        whole = end = setup.query_tiles * slices
    parts = [(False, first, whole), (True, whole, end), (False, end, setup.query_tiles * slices)]
    is_down = setup.plan.query_order is QueryOrder.DESCENDING
    for is_whole, lo, hi in reversed(parts) if is_down else parts:
        state = walk(partial(tile, is_whole), lo, hi, state, is_down)
    return state


def events_of_tile(
    setup: Setup,
    h: Array,
    i: Array,
    j: Array,
    is_whole: bool,
    before: Array | None = None,
    exists: Exists | None = None,
) -> Events:
    """Return the hook of tile (i, j) of a head; is_whole: whether all its scores exist.

    A program counts in 32 bits, but random streams and injections count in 64 bits. before: which
    rows had a visible key before it, or None; exists: what exists of a tile of a call with a mask.
    """
    h, i, j = (jnp.asarray(n, jnp.int64) for n in (h, i, j))
    tile = replace(
        tile_at(kernel_ops(), setup, head_number(setup, h), i, j, None, before),
        heads=_heads(setup),
        is_whole=is_whole and exists is None,
        anywhere=frozenset(Site) if setup.record is None else frozenset(),
    )
    if is_whole and setup.record is not None:
        rows, keys = jnp.ones(setup.block_q, bool), jnp.ones(setup.block_k, bool)
        tile = replace(
            tile, mask=jnp.ones((setup.block_q, setup.block_k), bool), rows=rows, keys=keys
        )
    if exists is not None:
        here = jnp.ones(setup.block_q, bool) if exists.rows is None else exists.rows
        had = here if before is None else before
        keys = jnp.ones(setup.block_k, bool) if exists.keys is None else exists.keys
        tile = replace(tile, mask=exists.scores, rows=here | had, rescaled=had, keys=keys)
    return events_at(kernel_ops(), setup, tile)


def events_of_rows(setup: Setup, h: Array, i: Array, seeing: Array | None = None) -> Events:
    """Return the hook of the rows of query tile i, for events that a head has once.

    seeing: which of them see a key, in a call with a mask.
    """
    h, row0 = (jnp.asarray(n, jnp.int64) for n in (h, i * setup.block_q))
    rows = row0 + jnp.arange(setup.block_q) < setup.queries
    rows = rows if seeing is None else seeing
    nothing = jnp.zeros((1, 1), bool)
    tile = Tile(
        head=head_number(setup, h),
        heads=_heads(setup),
        i=0,
        j=0,
        row0=row0,
        key0=0,
        mask=nothing,
        rows=rows,
        rescaled=rows,
        keys=rows,
        anywhere=frozenset(Site) if setup.record is None else frozenset(),
    )
    return events_at(kernel_ops(), setup, tile)
