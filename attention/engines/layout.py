"""Conversion between the arrays of callers and those of engines, and the 16-bit types of callers.

Callers have arrays (B, T, N, H): batch entries, rows, heads and features. Engines have (heads, rows
in whole tiles, H), with the heads of all batch entries along the first axis.
"""

from types import ModuleType

import ml_dtypes
import numpy as np

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


def from_heads(x: Array, batch: int, rows: int) -> Array:
    """Return (B N, T', ...) as (B, T, N, ...), without its padding; rows: T."""
    return x.reshape(batch, -1, *x.shape[1:])[:, :, :rows].swapaxes(1, 2)
