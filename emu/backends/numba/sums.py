"""Sums of products in ascending order: the Numba kernels of the NumPy executor.

Each call runs on one thread.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from roundscope.emu.backends.numba.jit import closure, compiled, intrinsic
from roundscope.emu.backends.numba.rounding import RULE64, bits_of_float, float_of_bits, where
from roundscope.emu.roundings.modes import BINARY32, Rounding
from roundscope.emu.roundings.rule import C64, EVEN, Target, target_of
from roundscope.emu.sums.odd import WIDEST, build_odd_sum

_even, _any, *_ = RULE64
_SPARE = 53 - WIDEST
_odd_sum = closure("64")(build_odd_sum(where, bits_of_float, float_of_bits))


@intrinsic
def fused(_: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c of three numbers of the same type, rounded once.

    It is computed by the processor's instruction, or by a library function if there is none.
    """

    def lowered(_: Any, builder: ir.IRBuilder, __: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, b, c), lowered


@compiled
def _fold32(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> None:
    """Add a_k b_k to total for ascending k in binary32, by the processor's multiply-adds."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row, y = total[i], b[k]
            for j in range(row.size):
                row[j] = fused(x, y[j], row[j])


@compiled
def _fold(a: np.ndarray, b: np.ndarray, total: np.ndarray, t: Target) -> None:
    """Add a_k b_k to total for ascending k, each step rounded by the rule."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            bits = row.view(np.int64)
            for j in range(row.size):
                product = x * b[k, j]
                s = bits_of_float(
                    _odd_sum(row[j], product) if t.drop >= _SPARE else row[j] + product
                )
                bits[j] = _even(s, t) if t.mode == EVEN else _any(s, t)


@compiled
def _fold64(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> None:
    """Add a_k b_k to total for ascending k in binary64; products and sums are each rounded."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            for j in range(row.size):
                row[j] += x * b[k, j]


@compiled
def _odd_sums(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> None:
    """Write the sum of each pair, rounded to odd."""
    for i in range(total.size):
        total[i] = _odd_sum(a[i], b[i])


def odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b of float64 arrays, rounded to odd."""
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    total = np.empty(a.shape)
    _odd_sums(a.ravel(), b.ravel(), total.ravel())
    return total


def ascending(a: np.ndarray, b: np.ndarray, init: np.ndarray, r: Rounding) -> np.ndarray:
    """Return init + the sum of a_k b_k for ascending k.

    a has the shape (K, T), b the shape (K, N), and init the shape (T, N).
    """
    if r == BINARY32 and (narrow := _in_binary32(a, b, init)) is not None:
        _fold32(*narrow)
        return narrow[-1].astype(np.float64)
    total = np.array(init, dtype=np.float64, order="C")
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if r.is_identity:
        _fold64(a, b, total)
    else:
        _fold(a, b, total, target_of(r, C64))
    return total


def _in_binary32(*arrays: np.ndarray) -> list[np.ndarray] | None:
    """Return copies of the arrays in binary32 if binary32 holds all their numbers, else None."""
    with np.errstate(over="ignore"):
        narrow = [np.array(x, dtype=np.float32, order="C") for x in arrays]
    return (
        narrow
        if all(np.array_equal(x, y, equal_nan=True) for x, y in zip(arrays, narrow, strict=True))
        else None
    )
