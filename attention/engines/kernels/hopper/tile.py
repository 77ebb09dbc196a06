"""A tile of a warp group as the equations see it: its events, its mask, and its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention.events.hook import Events
from roundscope.attention.tiles.loops import Setup, events_at, tile_at
from roundscope.emu.backends.kernels.held import Held
from roundscope.emu.backends.kernels.ops import kernel_ops
from roundscope.emu.backends.kernels.warpgroups.machine import Factor
from roundscope.emu.backends.kernels.warpgroups.registers import MATRIX


def events(setup: Setup, queries: int, keys: int, mask: Any) -> Events:
    """Return the hook of a tile (queries, keys); mask: which scores exist, None if all do.

    Where the tile is in its head is not known, and no event of these kernels depends on it.
    """
    ops, own = kernel_ops(of_warpgroups=True), replace(setup, block_q=queries, block_k=keys)
    rows = jnp.ones(queries, bool)
    tile = replace(
        tile_at(ops, own, 0, 0, 0, None, None),
        mask=jnp.ones((queries, keys), bool) if mask is None else mask,
        rows=rows,
        rescaled=rows,
        keys=jnp.ones(keys, bool),
        is_whole=mask is None,
        is_unrecorded=True,
    )
    return events_at(ops, own, tile)


def mask(setup: Setup, query: Array, key: Array, shape: tuple[int, int], by_key: bool) -> Array:
    """Return which scores exist, in registers; query, key: the first ones of the tile.

    by_key: whether the rows in registers are keys.
    """
    axes = (1, 0) if by_key else (0, 1)
    t, s = (plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=MATRIX) for axis in axes)
    t, s = t + query, s + key
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
