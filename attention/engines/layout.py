"""Conversion between the arrays of callers and those of engines, and the 16-bit types of callers.

Callers have arrays (B, T, N, H): batch entries, rows, heads and features. Engines have (heads, rows
in whole tiles, H), with the heads of all batch entries along the first axis.
"""

from types import ModuleType

import ml_dtypes
import numpy as np

from roundscope.attention.tiles.backward import by_halves
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, FP16

SIXTEEN_BITS = {np.dtype(ml_dtypes.bfloat16): BF16.format, np.dtype(np.float16): FP16.format}


def to_heads(xp: ModuleType, x: Array, block: int) -> Array:
    """Return (B, T, N, H) as (B N, T', H), where T' is T padded to whole tiles of `block` rows."""
    b, t, n, h = x.shape
    heads, missing = x.swapaxes(1, 2).reshape(b * n, t, h), -t % block
    if missing == 0:
        return heads
    return xp.concatenate([heads, xp.zeros((b * n, missing, h), x.dtype)], axis=1)


def scores_to_heads(xp: ModuleType, x: Array, setup: Setup, batch: int) -> Array:
    """Return what broadcasts to (B, N, T, S) as (B N, T', S'), padded to whole tiles with zeros.

    Raise ValueError if it does not broadcast.
    """
    full = xp.broadcast_to(x, (batch, setup.heads, setup.queries, setup.keys))
    full = full.reshape(-1, *full.shape[2:])
    rows, keys = (-setup.queries % setup.block_q), (-setup.keys % setup.block_k)
    return xp.pad(full, ((0, 0), (0, rows), (0, keys))) if rows or keys else full


def scores_from_heads(
    xp: ModuleType, x: Array, setup: Setup, batch: int, shape: tuple[int, ...]
) -> Array:
    """Return (B N, T', S') added up over the axes along which an array of this shape is broadcast.

    The sums are in binary64, in the order of `tiles.backward.by_halves`, axis after axis.
    """
    x = x[:, : setup.queries, : setup.keys].reshape(batch, -1, setup.queries, setup.keys)
    whole = (1,) * (4 - len(shape)) + tuple(shape)
    for axis, size in enumerate(whole):
        if size == 1 and x.shape[axis] > 1:
            x = xp.expand_dims(by_halves(xp, xp.moveaxis(x, axis, 0)), axis)
    return x.reshape(shape)


def from_heads(x: Array, batch: int, rows: int) -> Array:
    """Return (B N, T', ...) as (B, T, N, ...), without its padding; rows: T."""
    return x.reshape(batch, -1, *x.shape[1:])[:, :, :rows].swapaxes(1, 2)
