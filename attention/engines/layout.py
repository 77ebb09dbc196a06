"""Between the caller's arrays (B, T, N, H) and the engines' (heads, rows in whole tiles, H); and
the 16-bit types of callers.
"""

from types import ModuleType

import ml_dtypes
import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, FP16

SIXTEEN_BITS = {np.dtype(ml_dtypes.bfloat16): BF16.format, np.dtype(np.float16): FP16.format}


def to_heads(xp: ModuleType, x: Array, block: int) -> Array:
    """Return (B, T, N, H) as (B N, T', H), T' being T padded to whole tiles of `block` rows."""
    b, t, n, h = x.shape
    heads, missing = x.swapaxes(1, 2).reshape(b * n, t, h), -t % block
    if missing == 0:
        return heads
    return xp.concatenate([heads, xp.zeros((b * n, missing, h), x.dtype)], axis=1)


def from_heads(x: Array, batch: int, rows: int) -> Array:
    """Return (B N, T', ...) as (B, T, N, ...), without its padding; rows: T."""
    return x.reshape(batch, -1, *x.shape[1:])[:, :, :rows].swapaxes(1, 2)
