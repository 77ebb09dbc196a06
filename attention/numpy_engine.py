"""The NumPy engine: heads in a thread pool, tiles in Python, numbers in Numba kernels."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from attention import head as head_of
from attention.head import Setup
from attention.sites import Site
from emu.numpy_ops import numpy_ops, stack
from emu.rounding import BINARY32

Arrays = tuple[np.ndarray, ...]


def _each(function: Any, count: int) -> Any:
    """function(0 .. count - 1), stacked."""

    def quietly(h: int) -> Any:
        with np.errstate(all="ignore"):  # overflow, inf - inf and NaN are results here, counted by the trace
            return function(h)

    with ThreadPoolExecutor(min(count, os.cpu_count() or 1)) as pool:
        return stack(list(pool.map(quietly, range(count))))


def round_inputs(setup: Setup, site: Site, x: np.ndarray) -> tuple[np.ndarray, Any]:
    """x: (heads, rows, features)."""
    return _each(lambda h: head_of.round_inputs(numpy_ops(), setup, h, site, x[h]), x.shape[0])


def forward(setup: Setup, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> Any:
    """q: (heads, T, H); k, v: (key heads, S, H), rounded; mask: (heads, T, S) or None."""
    group = q.shape[0] // k.shape[0]

    def one(h: int) -> Any:
        return head_of.forward(numpy_ops(), setup, h, q[h], k[h // group], v[h // group], None if mask is None else mask[h])

    return _each(one, q.shape[0])


def backward(
    setup: Setup, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None,
    out: np.ndarray, wide: np.ndarray, lse: np.ndarray, do: np.ndarray,
) -> Any:  # fmt: skip
    """Gradients of heads, and what was seen of tiles, wholes and key heads."""
    group = q.shape[0] // k.shape[0]

    def one(h: int) -> Any:
        g = h // group
        m = None if mask is None else mask[h]
        return head_of.backward(numpy_ops(), setup, h, q[h], k[g], v[g], m, out[h], wide[h], lse[h], do[h])

    (dq, dk, dv, delta), seen = _each(one, q.shape[0])
    dk, dv = (x.reshape(-1, group, *x.shape[1:]) for x in (dk, dv))
    (dk, dv), rounded = _each(lambda g: head_of.round_key_gradients(numpy_ops(), setup, g, dk[g], dv[g]), k.shape[0])
    return (dq, dk, dv, delta), seen | {"keys": rounded}


def enter(x: np.ndarray) -> np.ndarray:
    """Any float array as the carrier, exactly."""
    return np.asarray(x).astype(np.float64)


def leave(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The carrier as float64, or as float32 by one rounding."""
    return x if dtype == np.float64 else numpy_ops().round(x, BINARY32, None).astype(np.float32)
