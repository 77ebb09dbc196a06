"""Statistics of rounding events: the Numba kernels of the NumPy executor."""

import functools
from typing import Any

import numpy as np

from roundscope.emu.backends.numba.jit import closure, compiled, njit
from roundscope.emu.backends.numba.rounding import (
    bits_of_float,
    float_of_bits,
    over_threads,
    round_array,
    where,
)
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.roundings.rule import C64
from roundscope.emu.stats.classify import Judged, build_classify, judged
from roundscope.emu.stats.summary import Stats

_MAGNITUDE = C64.magnitude
_classify = build_classify(where, float_of_bits, closure("classify"))
LANES, BLOCK = 8, 1024


@compiled
def _collect(
    x: np.ndarray,
    y: np.ndarray,
    valid: np.ndarray,
    f: Judged,
    counts: np.ndarray,
    sums: np.ndarray,
    rows: np.ndarray,
) -> tuple[float, int]:
    """Add the valid events of a flat tile to counts and sums, and write each row's signed ulps.

    All rows have the same length. Returns the largest |error| in ulps and its flat index, which is
    -1 if no event is valid.
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
    return float_of_bits(max(peak, 0)), place


@njit
def _count(
    x: np.ndarray,
    y: np.ndarray,
    valid: np.ndarray,
    f: Judged,
    counts: np.ndarray,
    error: np.ndarray,
    ulps: np.ndarray,
) -> int:
    """Count events, write their errors, and return the bits of the largest |ulps|, or -1.

    The loop has only integer sums and no branch, so that the processor counts several events at the
    same time. An event that is not valid is replaced by a rounding of 0 to 0, which sets no flag.
    """
    n = inexact = ties = ties_away = away = toward = carries = overflow = underflow = subnormal = (
        nan
    ) = 0
    top = -1
    for j in range(x.size):
        a, b = where(valid[j], x[j], 0.0), where(valid[j], y[j], 0.0)
        e = _classify(a, b, bits_of_float(a) & _MAGNITUDE, bits_of_float(b) & _MAGNITUDE, f)
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
        top = max(top, where(valid[j], bits_of_float(e[11]) & _MAGNITUDE, -1))
    row = (n, inexact, ties, ties_away, away, toward, carries, overflow, underflow, subnormal, nan)
    for c in range(11):
        counts[c] += row[c]
    return top


@njit
def _sum(error: np.ndarray, ulps: np.ndarray, lanes: np.ndarray) -> None:
    """Add error, |error|, error^2, |ulps| and ulps^2 to `lanes`, each in LANES separate sums.

    In this order the processor can add several numbers at once.
    """
    for j in range(0, error.size, LANES):
        for k in range(LANES):
            e, u = error[j + k], ulps[j + k]
            lanes[0, k] += e
            lanes[1, k] += abs(e)
            lanes[2, k] += e * e
            lanes[3, k] += abs(u)
            lanes[4, k] += u * u


@njit
def _row_sum(ulps: np.ndarray) -> float:
    """Return the sum of one row, added up in four partial sums."""
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


@njit
def _find(ulps: np.ndarray, valid: np.ndarray, top: int) -> int:
    """Return the index of the first valid event whose |ulps| has the bits `top`, or -1."""
    for j in range(valid.size):
        if valid[j] and bits_of_float(ulps[j]) & _MAGNITUDE == top:
            return j
    return -1


def stats(before: np.ndarray, after: np.ndarray, f: Format, valid: np.ndarray) -> tuple[Any, ...]:
    """Return the statistics of a tile of rows.

    They are the counts (11,), the sums (6,), the peak, its place, and the sum of signed ulps of
    each row.
    """
    counts, sums = np.zeros(11, np.int64), np.zeros(6)
    rows = np.zeros(before.shape[0])
    x, y, there = (np.ascontiguousarray(v).reshape(-1) for v in (before, after, valid))
    peak, place = _collect(x, y, there, judged(f), counts, sums, rows)
    return counts, sums, peak, place, rows


@compiled
def _collect32(
    x: np.ndarray, y: np.ndarray, f: Judged, counts: np.ndarray, sums: np.ndarray
) -> tuple[float, int]:
    """Add the events of flat float32 arrays, which are all valid, to counts and sums.

    Returns the peak and its index, which is -1 for empty arrays.
    """
    before, after, valid = np.zeros(BLOCK), np.zeros(BLOCK), np.ones(BLOCK, np.bool_)
    error, ulps = np.zeros(BLOCK), np.zeros(BLOCK)
    lanes, signed = np.zeros((5, LANES)), 0.0
    peak, place = -1, -1
    for lo in range(0, x.size, BLOCK):
        size = min(BLOCK, x.size - lo)
        part_x, part_y = x[lo : lo + size], y[lo : lo + size]
        for i in range(size):
            before[i], after[i] = part_x[i], part_y[i]
        error[size:], ulps[size:] = 0.0, 0.0
        top = _count(before[:size], after[:size], valid[:size], f, counts, error, ulps)
        _sum(error, ulps, lanes)
        signed += _row_sum(ulps[:size])
        if top > peak:
            peak, place = top, lo + _find(ulps[:size], valid[:size], top)
    for n in range(5):
        sums[n + (n > 2)] += lanes[n].sum()
    sums[3] += signed
    return float_of_bits(max(peak, 0)), place


# the number of numbers that are rounded and classified while they are in the cache; with 2^17 or
# more, round_array would use threads itself and wait for them
PIECE = 1 << 15


def rounded_with_stats(
    x: np.ndarray, r: Rounding, random: np.ndarray | None, out: np.ndarray | None
) -> tuple[np.ndarray, Stats]:
    """Return a rounded float32 array and the summary of its events, in one pass over memory."""
    result = np.empty(x.shape, x.dtype) if out is None else out
    lots = None if random is None else random.reshape(-1)
    flat, rounded, judge = np.ascontiguousarray(x).reshape(-1), result.reshape(-1), judged(r.format)
    in_place = flat.ctypes.data == rounded.ctypes.data
    if not in_place and np.may_share_memory(flat, rounded):
        flat = flat.copy()

    def piece(lo: int, hi: int) -> Stats:
        counts, sums, peak, place = np.zeros(11, np.int64), np.zeros(6), 0.0, -1
        for first in range(lo, hi, PIECE):
            part = slice(first, min(first + PIECE, hi))
            before = flat[part].copy() if in_place else flat[part]
            round_array(before, r, None if lots is None else lots[part], rounded[part])
            top, where_it_is = _collect32(before, rounded[part], judge, counts, sums)
            if place < 0 or top > peak:
                peak, place = top, first + where_it_is
        return Stats.of(counts, sums, peak, place)

    return result, functools.reduce(Stats.__add__, over_threads(piece, x.size))
