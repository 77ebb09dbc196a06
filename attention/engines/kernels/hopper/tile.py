"""A tile of a warp group as the equations see it: its events, its mask, and its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention.events.hook import Events
from roundscope.attention.tiles.loops import Setup, events_at, tile_at
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.ops import kernel_ops
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.machine import Factor
from roundscope.emu.backends.kernels.warpgroups.registers import ROWWISE


class Exists(NamedTuple):
    """What exists of a tile that is not whole, in registers.

    scores  scores that are neither masked nor padding; the rows of the matrix are queries, or keys
    rows    rows of the matrix that have such a score in this tile of the plan, (64,); None where
            no event asks
    """

    scores: Array
    rows: Array | None = None


def events(
    setup: Setup, queries: int, keys: int, exists: Exists | None = None, *, by_key: bool = False
) -> Events:
    """Return the hook of a tile (queries, keys); exists: None if all of it does.

    Where the tile is in its head is not known, and no event of these kernels depends on it.

    by_key: whether the rows in registers are keys.
    """
    ops, own = kernel_ops(of_warpgroups=True), replace(setup, block_q=queries, block_k=keys)
    whole = tile_at(ops, own, 0, 0, 0, None, None)
    rows, of_keys = jnp.ones(queries, bool), jnp.ones(keys, bool)
    scores = jnp.ones((queries, keys), bool)
    if exists is not None:
        scores = exists.scores.T if by_key else exists.scores
        if exists.rows is not None:
            rows, of_keys = (rows, exists.rows) if by_key else (exists.rows, of_keys)
    tile = replace(
        whole,
        mask=scores,
        rows=rows,
        rescaled=rows,
        keys=of_keys,
        is_whole=exists is None,
        is_unrecorded=True,
    )
    return events_at(ops, own, tile)


def scores_by_query(setup: Setup, query: Array, key: Array) -> Exists:
    """Return which scores of 64 queries and block_k keys exist; query, key: the first of them."""
    shape = ROWS, setup.block_k
    return Exists(_scores(setup, _counted(query, shape, 0), _counted(key, shape, 1)))


def exists_by_query(setup: Setup, query: Array, key: Array) -> Exists:
    """Return what exists of 64 queries and block_k keys; query, key: the first of them."""
    rows = _counted(query, (ROWS,), 0)
    here = rows < np.int32(setup.queries)
    here = here & (rows >= key) if setup.is_causal else here
    return scores_by_query(setup, query, key)._replace(rows=ROWWISE.placed(here))


def exists_by_key(setup: Setup, query: Array, key: Array) -> Exists:
    """Return what exists of 64 keys and 64 queries; query, key: the first of them."""
    shape = ROWS, ROWS
    s, t = _counted(key, shape, 0), _counted(query, shape, 1)
    rows = _counted(key, shape[:1], 0)
    here = rows < np.int32(setup.keys)
    first = query // np.int32(setup.block_q) * np.int32(setup.block_q)  # of the plan's tile
    last = jnp.minimum(first + np.int32(setup.block_q), np.int32(setup.queries)) - 1
    here = here & (rows <= last) if setup.is_causal else here
    return Exists(_scores(setup, t, s), ROWWISE.placed(here))


def _counted(first: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return the numbers first, first + 1 ... along an axis, in registers."""
    layout = ROWWISE.layout(len(shape))
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=layout) + first


def _scores(setup: Setup, t: Array, s: Array) -> Array:
    """Return whether the scores of queries t and keys s exist."""
    exists = (t < np.int32(setup.queries)) & (s < np.int32(setup.keys))
    return exists & (s <= t) if setup.is_causal else exists


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
