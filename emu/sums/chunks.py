"""Terms of a sum as chunks, which a matrix unit adds one after the other."""

from typing import Any

from roundscope.emu.backends.ops import Array, Ops


def in_chunks(ops: Ops, x: Array, chunk: int) -> Array:
    """Return (K, lines) as (chunks, chunk, lines), padded with zeros as a kernel pads its tiles."""
    x = padded(ops.xp, x, chunk)
    return x.reshape(x.shape[0] // chunk, chunk, x.shape[1])


def padded(xp: Any, x: Array, unit: int) -> Array:
    """Return an array with zeros appended along its first axis, to a multiple of `unit`."""
    missing = -x.shape[0] % unit
    return xp.concatenate([x, xp.zeros((missing, *x.shape[1:]))]) if missing else x
