"""`Ops` on NumPy arrays with Numba kernels: one thread each call, the interpreter lock released."""

from functools import cache
from typing import Any

import numba
import numpy as np

from emu.classify import build_classify, judged
from emu.formats import Format
from emu.kernels import RULE64, round_array, where
from emu.ops import Ops
from emu.rounding import Rounding, RoundingMode
from emu.rule import C64, EVEN, target_of

_even, _any, _ = RULE64
_MAGNITUDE, _SIGN = C64.magnitude, ~C64.magnitude


@numba.njit
def _from_bits(b: Any) -> Any:
    return np.int64(b).view(np.float64)


_classify = build_classify(where, _from_bits, numba.njit)
LANES, BLOCK = 8, 1024


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
    """Adds the events of a flat tile where `valid` to counts, sums and the signed ulps of rows of equal length.

    Returns the largest |error| in ulps and its flat index, or -1.
    """
    columns = x.size // max(rows.size, 1)
    block = min(max(BLOCK // max(columns, 1), 1) * columns, x.size)  # whole rows
    padded = (block + LANES - 1) // LANES * LANES
    error, ulps = np.zeros(padded), np.zeros(padded)
    lanes = np.zeros((5, LANES))
    peak, place = -1, -1
    for lo in range(0, x.size, max(block, 1)):
        part = slice(lo, min(lo + block, x.size))
        size = part.stop - lo
        top = _count(x[part], y[part], valid[part], f, counts, error, ulps)
        error[size:], ulps[size:] = 0.0, 0.0
        _sum(error, ulps, lanes)
        for i in range(size // columns):
            rows[lo // columns + i] = _row_sum(ulps[i * columns : (i + 1) * columns])
        if top > peak:
            peak, place = top, lo + _find(ulps, valid[part], top)
    for n in range(5):
        sums[n + (n > 2)] = lanes[n].sum()
    sums[3] = rows.sum()
    return _from_bits(max(peak, 0)), place


@numba.njit
def _count(x, y, valid, f, counts, error, ulps):
    """Counts events and writes their errors; returns the bits of the largest |ulps|, -1 if there is none.

    Integer sums only, and no branch: the loop runs several events at a time. What is not valid counts as 0 before and
    after, which raises no flag.
    """
    n = inexact = ties = ties_away = away = toward = carries = overflow = underflow = subnormal = nan = 0
    top = -1
    for j in range(x.size):
        a, b = where(valid[j], x[j], 0.0), where(valid[j], y[j], 0.0)
        e = _classify(a, b, _bits(a) & _MAGNITUDE, _bits(b) & _MAGNITUDE, f)
        n += int(valid[j])
        inexact += int(e[0])
        ties += int(e[1])
        ties_away += int(e[2])
        away += int(e[3])
        toward += int(e[4])
        carries += int(e[5])
        overflow += int(e[6])
        underflow += int(e[7])
        subnormal += int(e[8])
        nan += int(e[9])
        error[j], ulps[j] = e[10], e[11]
        top = max(top, where(valid[j], _bits(e[11]) & _MAGNITUDE, -1))
    row = (n, inexact, ties, ties_away, away, toward, carries, overflow, underflow, subnormal, nan)
    for c in range(11):
        counts[c] += row[c]
    return top


@numba.njit
def _sum(error, ulps, lanes):
    """Adds error, |error|, error^2, |ulps|, ulps^2, each in LANES sums: an order that the processor adds at once."""
    for j in range(0, error.size, LANES):
        for k in range(LANES):
            e, u = error[j + k], ulps[j + k]
            lanes[0, k] += e
            lanes[1, k] += abs(e)
            lanes[2, k] += e * e
            lanes[3, k] += abs(u)
            lanes[4, k] += u * u


@numba.njit
def _row_sum(ulps):
    """The sum of one row, in four sums."""
    a = b = c = d = 0.0
    whole = ulps.size // 4 * 4
    for j in range(0, whole, 4):
        a += ulps[j]
        b += ulps[j + 1]
        c += ulps[j + 2]
        d += ulps[j + 3]
    for j in range(whole, ulps.size):
        a += ulps[j]
    return (a + b) + (c + d)


@numba.njit
def _find(ulps, valid, top):
    """Where the first valid |ulps| with these bits stands."""
    for j in range(valid.size):
        if valid[j] and _bits(ulps[j]) & _MAGNITUDE == top:
            return j
    return -1


def stats(before: np.ndarray, after: np.ndarray, f: Format, valid: np.ndarray) -> tuple[Any, ...]:
    """counts (11), sums (6), peak, place and the rows' signed ulps of a tile of shape (rows, columns)."""
    counts, sums = np.zeros(11, np.int64), np.zeros(6)
    rows = np.zeros(before.shape[0])
    flat = (np.ascontiguousarray(v).reshape(-1) for v in (before, after, valid))
    peak, place = _collect(*flat, judged(f), counts, sums, rows)
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
