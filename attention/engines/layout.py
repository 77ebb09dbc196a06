"""Between the arrays of a caller, (B, T, N, H), and those of an engine, (heads, rows padded to
whole tiles, H); and the 16-bit types of callers.
"""

from typing import Any

import ml_dtypes
import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.rounding.modes import BF16, FP16

SIXTEEN_BITS = {np.dtype(ml_dtypes.bfloat16): BF16.format, np.dtype(np.float16): FP16.format}


def to_heads(xp: Any, x: Array, block: int) -> Array:
    """Return (B, T, N, H) as (B N, T padded with zeros to whole tiles of `block` rows, H)."""
    b, t, n, h = x.shape
    heads, missing = x.swapaxes(1, 2).reshape(b * n, t, h), -t % block
    if missing == 0:
        return heads
    return xp.concatenate([heads, xp.zeros((b * n, missing, h), x.dtype)], axis=1)


def from_heads(x: Array, batch: int, rows: int) -> Array:
    """Return (B N, T padded, ...) as (B, T, N, ...), without the padding."""
    return x.reshape(batch, -1, *x.shape[1:])[:, :, :rows].swapaxes(1, 2)
