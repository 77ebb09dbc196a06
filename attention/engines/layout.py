"""Between the caller's (B, T, N, H) and the engines' (heads, rows padded to whole tiles, H)."""

from typing import Any


def to_heads(xp: Any, x: Any, block: int) -> Any:
    """(B, T, N, H) -> (B N, T padded to whole tiles of `block` rows, H)."""
    b, t, n, h = x.shape
    heads, missing = x.swapaxes(1, 2).reshape(b * n, t, h), -t % block
    return (
        heads
        if missing == 0
        else xp.concatenate([heads, xp.zeros((b * n, missing, h), x.dtype)], axis=1)
    )


def from_heads(x: Any, batch: int, rows: int) -> Any:
    """(B N, T padded, ...) -> (B, T, N, ...)."""
    return x.reshape(batch, -1, *x.shape[1:])[:, :, :rows].swapaxes(1, 2)
