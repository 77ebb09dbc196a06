"""A tile of a warp group as the equations see it: its events, its mask, and its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention.engines.kernels.tiles import Exists
from roundscope.attention.events.hook import Events
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup, events_at, tile_at
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.ops import kernel_ops
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.machine import Factor, Later
from roundscope.emu.backends.kernels.warpgroups.registers import ROWWISE, between


def events(
    setup: Setup, queries: int, keys: int, exists: Exists | None = None, *, by_key: bool = False
) -> Events:
    """Return the hook of a tile (queries, keys).

    Where the tile is in its head is not known, and no event of these kernels depends on it.

    exists  what exists of the tile, its scores to be found for each operation (`Later`), its rows
            and keys None where every one that is not padding has a score; None if all of it exists
    by_key  whether the rows in registers are keys, and the scores (keys, queries)
    """
    ops, own = kernel_ops(of_warpgroups=True), replace(setup, block_q=queries, block_k=keys)
    whole = tile_at(ops, own, 0, 0, 0, None, None)
    rows, of_keys = jnp.ones(queries, bool), jnp.ones(keys, bool)
    scores = jnp.ones((queries, keys), bool)
    if exists is not None:
        scores = exists.scores.T if by_key else exists.scores
        rows = rows if exists.rows is None else exists.rows
        of_keys = of_keys if exists.keys is None else exists.keys
    tile = replace(
        whole,
        mask=scores,
        rows=rows,
        rescaled=rows,
        keys=of_keys,
        is_whole=exists is None,
        anywhere=frozenset(Site),
    )
    return events_at(ops, own, tile)


def scores_by_query(setup: Setup, query: Array, key: Array) -> Exists:
    """Return which scores of 64 queries and block_k keys exist; query, key: the first of them."""
    t = numbered(query)
    last = jnp.minimum(t + 1, np.int32(setup.keys)) if setup.is_causal else np.int32(setup.keys)
    last = jnp.where(t < np.int32(setup.queries), last - key, 0)
    return Exists(_scores(None, last, setup.block_k), None, None)


def exists_by_query(setup: Setup, query: Array, key: Array) -> Exists:
    """Return what exists of 64 queries and block_k keys; query, key: the first of them."""
    rows = rows_by_query(setup, query, key)
    return scores_by_query(setup, query, key)._replace(rows=rows)


def rows_by_query(setup: Setup, query: Array, key: Array) -> Array | None:
    """Return which of 64 queries have a score in a tile; None if all do that are no padding."""
    if not setup.is_causal or setup.block_k % setup.block_q == 0:
        return None
    return numbered(query) >= key


def exists_by_key(setup: Setup, query: Array, key: Array) -> Exists:
    """Return what exists of 64 keys and 64 queries; query, key: the first of them."""
    s, first, last = numbered(key), None, None
    if setup.is_causal:
        first = s - query
    if setup.keys % setup.block_k or setup.queries % setup.block_q:
        last = jnp.where(s < np.int32(setup.keys), np.int32(setup.queries) - query, 0)
    exists = Exists(_scores(first, last, ROWS), None, None)
    if not setup.is_causal or (setup.block_q % setup.block_k == 0 and setup.keys <= setup.queries):
        return exists
    begin = query // np.int32(setup.block_q) * np.int32(setup.block_q)  # of the plan's tile
    end = jnp.minimum(begin + np.int32(setup.block_q), np.int32(setup.queries))
    return exists._replace(keys=s < end)


def _scores(first: Array | None, last: Array | None, columns: int) -> Any:
    shape = ROWS, columns
    return Later(made=partial(between, first, last, shape), shape=shape, dtype=np.dtype(bool))


def numbered(first: Array) -> Array:
    """Return the numbers of 64 rows, the first of which is given."""
    rows = plgpu.broadcasted_iota(jnp.int32, (ROWS,), 0, layout=ROWWISE.layout(1))
    return rows + first


def factor(memory: Any, name: str, **hooks: Any) -> Held:
    """Return a matrix in shared memory as numbers of a format, to be read by products."""
    return Held(array=Factor(ref=memory, shape=memory.shape, **hooks), format=name)


def held(
    arrays: Sequence[Array], formats: Sequence[str], seen_as: Sequence[tuple[int, ...]]
) -> list[Held]:
    """Return arrays with their formats, and the shapes that the equations see."""
    return [
        Held(array=x, format=name, seen_as=shape)
        for x, name, shape in zip(arrays, formats, seen_as, strict=True)
    ]
