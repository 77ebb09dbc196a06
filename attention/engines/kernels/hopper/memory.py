"""The shared memory of a program: what it holds of which array, and how much of it."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention.engines.kernels.hopper import GROUPS
from roundscope.emu.backends.kernels.warpgroups import ROWS


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
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
