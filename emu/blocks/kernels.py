"""The Numba executor of block formats, which makes one pass over memory on two threads or more.

In this module P stands for the elements, X for the scales of blocks and T for the scale of the
whole array; the numbers are T X P.
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.threads import over_threads
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.power32 import power32
from roundscope.emu.blocks.rule import Powers, Quotients, element_of, powers_of, quotients_of
from roundscope.emu.blocks.scaled import scaled, tensor_of
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.roundings.rule import C32, C64, target_of

NO_BITS = np.zeros(0, np.int32)
_NO_QUOTIENTS = Quotients(0, target_of(BINARY32, C64), 0, 0, target_of(BINARY32, C64))
_NO_POWERS = Powers(0, 0, 0, 0)


def tensor_scale(x: np.ndarray, f: BlockFormat) -> float:
    """Return the scale T of a whole array of blocks, which is 1 where the format has none."""
    if not f.tensor:
        return 1.0
    finite = np.abs(x[np.isfinite(x)])
    top = float(finite.max()) if finite.size else 0.0
    return tensor_of(int(np.float64(top).view(np.int64)), quotients_of(f)) if top else 1.0


def _parts(size: int, block: int) -> Any:
    """Return a function that maps the range (lo, hi) of a thread to a slice of whole blocks.

    `size` is the number of all numbers and `block` that of the numbers in a block.
    """
    return lambda lo, hi: slice(lo // block * block, hi // block * block if hi < size else size)


def round_blocks(
    x: np.ndarray, f: BlockFormat, random: np.ndarray | None, out: np.ndarray | None = None
) -> np.ndarray:
    """Return blocks (n, k) of float32 or float64 numbers, rounded to the block format.

    `out`, a contiguous array, receives the result; it may be x itself.
    """
    y = np.empty(x.shape, x.dtype) if out is None else out
    x = x.copy() if np.shares_memory(x, y) else x
    lots = NO_BITS if random is None else np.ascontiguousarray(random).reshape(-1)
    if x.dtype != np.float32 or not f.power_of_two:
        _run_scaled(x, y, lots, f, times=True)
        return y
    k, cut = x.shape[1], _parts(x.size, x.shape[1])
    flat, result = np.ascontiguousarray(x).reshape(-1).view(np.int32), y.reshape(-1).view(np.int32)
    shared = (k, powers_of(f), target_of(f.element, C32), element_of(f))
    over_threads(
        lambda lo, hi: power32(
            flat[(p := cut(lo, hi))], result[p], lots[p] if lots.size else lots, *shared
        ),
        x.size,
    )
    return y


def quantise(
    x: np.ndarray, f: BlockFormat, random: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Return elements P (n, k), scales X (n, 1) and T of blocks (n, k), all in float32."""
    y = np.empty(x.shape, np.float32)
    lots = NO_BITS if random is None else np.ascontiguousarray(random).reshape(-1)
    scales, tensor = _run_scaled(x, y, lots, f, times=False)
    return y, scales.astype(np.float32)[:, None], np.float32(tensor)


def dequantise(p: np.ndarray, scales: np.ndarray, tensor: float) -> np.ndarray:
    """Return the numbers T X P in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (p.astype(np.float64) * (scales.astype(np.float64) * float(tensor))).astype(
            np.float32
        )


def _run_scaled(
    x: np.ndarray, y: np.ndarray, lots: np.ndarray, f: BlockFormat, times: bool
) -> tuple[np.ndarray, float]:
    """Run `scaled` over threads; return the scales X of shape (n,) in float64, and the scale T."""
    k, power, tensor = x.shape[1], f.power_of_two, tensor_scale(x, f)
    scales, cut = np.empty(x.shape[0]), _parts(x.size, x.shape[1])
    flat, result = np.ascontiguousarray(x).reshape(-1), y.reshape(-1)
    p, q = (powers_of(f), _NO_QUOTIENTS) if power else (_NO_POWERS, quotients_of(f))

    def job(lo: int, hi: int) -> None:
        part = cut(lo, hi)
        blocks = slice(part.start // k, part.stop // k)
        scaled(
            flat[part],
            result[part],
            scales[blocks],
            lots[part] if lots.size else lots,
            k,
            tensor,
            times,
            power,
            p,
            q,
            element_of(f),
        )

    over_threads(job, x.size)
    return scales, tensor
