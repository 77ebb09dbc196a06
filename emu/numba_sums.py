"""Sums of products in ascending order: the Numba kernels of the NumPy executor, one thread each call."""

import numpy as np

from emu.kernels import RULE64, bits_of_float, compiled, where
from emu.rounding import Rounding, RoundingMode
from emu.rule import C64, EVEN, target_of

_even, _any, _ = RULE64
_MAGNITUDE, _SIGN = C64.magnitude, ~C64.magnitude


@compiled
def _fold32(a, b, total):
    """total += a_k b_k for ascending k, each step rounded to binary32 by the processor."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            for j in range(row.size):
                row[j] = np.float64(np.float32(row[j] + x * b[k, j]))


@compiled
def _fold(a, b, total, t):
    """total += a_k b_k for ascending k, each step rounded by the rule; total: the sum's bits."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            bits = row.view(np.int64)
            for j in range(row.size):
                s = bits_of_float(row[j] + x * b[k, j])
                m = _even(s & _MAGNITUDE, s < 0, t) if t.mode == EVEN else _any(s & _MAGNITUDE, s < 0, t)
                bits[j] = where((m == 0) & (t.negative_zero == 0), 0, m | (s & _SIGN))


@compiled
def _fold64(a, b, total):
    """total += a_k b_k for ascending k in binary64, product and sum rounded each."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            for j in range(row.size):
                row[j] += x * b[k, j]


def ascending(a: np.ndarray, b: np.ndarray, init: np.ndarray, r: Rounding) -> np.ndarray:
    """init + the fold of a_k b_k, k ascending; a: (K, T), b: (K, N), init: (T, N)."""
    total = np.array(init, dtype=np.float64, order="C")
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if r.is_identity:
        _fold64(a, b, total)
    elif r.format.name == "fp32" and r.mode is RoundingMode.TIES_TO_EVEN:
        with np.errstate(over="ignore"):
            _fold32(a, b, total)
    else:
        _fold(a, b, total, target_of(r, C64))
    return total
