"""Between the caller's arrays (B, T, N, H) and the engines' (heads, rows in whole tiles, H)."""

from types import ModuleType

from roundscope.emu.backends.ops import Array


def to_heads(xp: ModuleType, x: Array, block: int) -> Array:
    """Return (B, T, N, H) as (B N, T', H), T' being T padded to whole tiles of `block` rows."""
    b, t, n, h = x.shape
    heads, missing = x.swapaxes(1, 2).reshape(b * n, t, h), -t % block
    return (
        heads
        if missing == 0
        else xp.concatenate([heads, xp.zeros((b * n, missing, h), x.dtype)], axis=1)
    )


def from_heads(x: Array, batch: int, rows: int) -> Array:
    """Return (B N, T', ...) as (B, T, N, ...), without its padding; rows: T."""
    return x.reshape(batch, -1, *x.shape[1:])[:, :, :rows].swapaxes(1, 2)
