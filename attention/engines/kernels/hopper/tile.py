"""What a warp group has of a tile: shared memory, and the tile's events, mask and numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention.engines.kernels.hopper import GROUPS
from roundscope.attention.engines.kernels.tiles import Exists
from roundscope.attention.hook import Events
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup, events_at, tile_at
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.ops import kernel_ops
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.machine import Factor, Later
from roundscope.emu.backends.kernels.warpgroups.registers import ROWWISE, between


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An array that a kernel reads: (B, rows, N, features), or (B, N, rows).

    of_keys    whether its heads are key heads
    of_scores  whether it is (B, S, N, T), of which a warp group reads the columns of its rows
    """

    array: Array
    of_keys: bool = False
    of_scores: bool = False

    @property
    def copies(self) -> int:
        """How many copies bring a tile to shared memory."""
        return GROUPS if self.of_scores else 1


class Memory(NamedTuple):
    """The shared memory of a program, and its barriers.

    own      what each warp group reads of its rows: (GROUPS, 64, features) or (GROUPS, 64)
    walked   tiles: (ahead, size, features) or (ahead, size), of scores (ahead, GROUPS, size, 64)
    results  where 16-bit results lie on their way out
    streams  where a tile of scores lies on its way out: (GROUPS, 64, size)
    arrived  for each warp group: its rows are there
    ready    for each array and tile in memory: it is there
    free     for each array and tile in memory: no warp group needs it any longer
    turn     both warp groups have reached it
    """

    own: list[Any]
    walked: list[Any]
    results: list[Any]
    streams: list[Any]
    arrived: Any
    ready: list[Any]
    free: list[Any]
    turn: Any


def is_sixteen(result: Any) -> bool:
    """Return whether a result is a matrix of 16-bit numbers.

    These leave by way of shared memory. Four threads write 32 bytes of a matrix of binary32
    numbers, as much as memory takes at once, so these leave from the registers.
    """
    return len(result.shape) == 4 and jnp.dtype(result.dtype).itemsize == 2


def of_tiles(ahead: int, size: int, given: Given, like: Any) -> Any:
    """Return shared memory for the tiles of an array that are walked over, of `size` rows each."""
    if given.of_scores:
        return shared((ahead, GROUPS, size), like, ROWS)
    return shared((ahead, size), like)


def shared(rows: tuple[int, ...], like: Any, columns: int | None = None) -> Any:
    """Return shared memory for some rows of an array; columns: how many, or None for all."""
    if len(like.shape) == 3:
        return plgpu.SMEM(rows, like.dtype)
    width, size = columns or like.shape[-1], jnp.dtype(like.dtype).itemsize
    swizzle = plgpu.find_swizzle(width * size * 8)
    tiling = plgpu.TilingTransform((8, swizzle // size))
    transforms = (tiling, plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM((*rows, width), like.dtype, transforms=transforms)


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
