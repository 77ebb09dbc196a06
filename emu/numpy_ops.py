"""`Ops` on NumPy arrays with Numba kernels: one thread each call, the interpreter lock released."""

from functools import cache
from typing import Any

import numba
import numpy as np

from emu.classify import build_classify, judged
from emu.formats import Format
from emu.kernels import RULE64, parallel, round_array, where
from emu.ops import Ops
from emu.rounding import Rounding, RoundingMode
from emu.rule import C64, EVEN, target_of

_even, _any, _ = RULE64
_MAGNITUDE, _SIGN = C64.magnitude, ~C64.magnitude


@numba.njit
def _from_bits(b: Any) -> Any:
    return np.int64(b).view(np.float64)


_classify = build_classify(where, _from_bits, numba.njit)
LANES = 8


@numba.njit(nogil=True)
def _fold32(a, b, total):
    """total += a_k b_k for ascending k, each step rounded to binary32 by the processor."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            for j in range(row.size):
                row[j] = np.float64(np.float32(row[j] + x * b[k, j]))


@numba.njit(nogil=True)
def _fold(a, b, total, t):
    """total += a_k b_k for ascending k, each step rounded by the rule; total: the sum's bits."""
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            x = a[k, i]
            row = total[i]
            bits = row.view(np.int64)
            for j in range(row.size):
                s = _bits(row[j] + x * b[k, j])
                m = _even(s & _MAGNITUDE, s < 0, t) if t.mode == EVEN else _any(s & _MAGNITUDE, s < 0, t)
                bits[j] = where((m == 0) & (t.negative_zero == 0), 0, m | (s & _SIGN))


@numba.njit
def _bits(x):
    return np.float64(x).view(np.int64)


@numba.njit(nogil=True)
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


@numba.njit(nogil=True)
def _collect(x, y, valid, f, counts, sums, rows):
    """Adds the events of a (rows, columns) tile where `valid` to counts, sums and the rows' signed ulps.

    Returns the largest |error| in ulps and its flat index, or -1.
    """
    peak, place = 0.0, -1
    for i in range(x.shape[0]):
        row = 0.0
        for j in range(x.shape[1]):
            if not valid[i, j]:
                continue
            a, b = _bits(x[i, j]) & _MAGNITUDE, _bits(y[i, j]) & _MAGNITUDE
            event = _classify(x[i, j], y[i, j], a, b, f)
            counts[0] += 1
            for c in range(10):
                counts[c + 1] += _flag(event, c)
            error, ulps = event[10], event[11]
            size = abs(ulps)
            sums[0] += error
            sums[1] += abs(error)
            sums[2] += error * error
            sums[3] += ulps
            sums[4] += size
            sums[5] += ulps * ulps
            row += ulps
            if size > peak or place < 0:
                peak, place = size, i * x.shape[1] + j
        rows[i] += row
    return peak, place


@numba.njit
def _flag(event, c):
    flags = (event[0], event[1], event[2], event[3], event[4], event[5], event[6], event[7], event[8], event[9])
    return np.int64(flags[c])


def stats(before: np.ndarray, after: np.ndarray, f: Format, valid: np.ndarray) -> tuple[Any, ...]:
    """counts (11), sums (6), peak, place and the rows' signed ulps of a tile of shape (rows, columns)."""
    counts, sums = np.zeros(11, np.int64), np.zeros(6)
    rows = np.zeros(before.shape[0])
    x, y = np.ascontiguousarray(before), np.ascontiguousarray(after)
    peak, place = _collect(x, y, np.ascontiguousarray(valid), judged(f), counts, sums, rows)
    return counts, sums, peak, place, rows


def _round(x: np.ndarray, r: Rounding, random: np.ndarray | None = None) -> np.ndarray:
    return x if r.is_identity else round_array(np.asarray(x, dtype=np.float64), r, random)


def _scan(body: Any, carry: Any, xs: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    seen = []
    for k in range(xs[0].shape[0]):
        carry, y = body(carry, k, tuple(x[k] for x in xs))
        seen.append(y)
    return carry, stack(seen)


def stack(ys: list[Any]) -> Any:
    """A list of equal structures of arrays as one structure of stacked arrays; None stands for zeros."""
    like = next((y for y in ys if y is not None), None)
    if like is None:
        return None
    if isinstance(like, dict):
        return {key: stack([None if y is None else y[key] for y in ys]) for key in like}
    if isinstance(like, tuple):
        return tuple(stack([None if y is None else y[part] for y in ys]) for part in range(len(like)))
    return np.stack([np.zeros_like(like) if y is None else y for y in ys])


def _when(active: Any, compute: Any, state: Any) -> tuple[Any, Any]:
    return compute() if active else (state, None)


@cache
def numpy_ops() -> Ops:
    """The record for NumPy arrays."""
    return Ops(
        xp=np,
        round=_round,
        multiply=np.multiply,
        bits=lambda x: np.asarray(x, dtype=np.float64).view(np.int64),
        from_bits=lambda b: np.asarray(b, dtype=np.int64).view(np.float64),
        scan=_scan,
        when=_when,
        ascending=ascending,
        stats=stats,
    )
