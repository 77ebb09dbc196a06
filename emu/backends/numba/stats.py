"""Statistics of rounding events: the Numba kernels of the NumPy executor."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.backends.numba import lanes
from roundscope.emu.backends.numba.jit import closure, compiled, njit
from roundscope.emu.backends.numba.lanes import LANES, WIDTH
from roundscope.emu.backends.numba.rounding import (
    LOOPS32,
    bits_of_float,
    float_of_bits,
    in_place,
    where,
)
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.roundings.rule import C32, C64, EVEN, STOCHASTIC, Target, bits_of, target_of
from roundscope.emu.stats.classify import Judged, build_classify, judged
from roundscope.emu.stats.summary import Stats

_MAGNITUDE, _MAGNITUDE32 = C64.magnitude, C32.magnitude


@njit
def _power_of_two(exponent: int) -> float:
    return float_of_bits(exponent << 52)


_classify = build_classify(where, _power_of_two, closure("classify"), has_deep=True)
_classify_wide = build_classify(
    lanes.where, lanes.power_of_two, closure("wide"), C32, is_exact=True
)
_classify_narrow = build_classify(
    lanes.where, lanes.single_power_of_two, closure("narrow"), C32, C32, is_exact=True
)
_round_even, _round_any, _round_stochastic = LOOPS32
BLOCK = 1024
PIECE = 1 << 15  # in `round_with_stats`, the sums of so many events are added to those before


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


class Narrow(NamedTuple):
    """Where the errors of a rounding are binary32 numbers, as arithmetic in binary32 has them.

    least   bits of the smallest positive such number
    most    bits of the largest such number; larger ones than infinity are NaN
    format  the format; its smallest exponent is raised until 1 / ulp is a binary32 number
    """

    least: int
    most: int
    format: Judged


def narrow_of(r: Rounding) -> Narrow:
    """Return where the errors of a rounding are binary32 numbers.

    From the smallest number of the format on, an error is a multiple of the argument's last bit,
    and has at most 23 bits. Below, it is the argument or, by Sterbenz' lemma, exact in rounding to
    nearest. In other modes it may be the smallest number less a tiny one. In ulps it has as many
    bits; binary32 holds them unless 1 / ulp is below 1 and the argument is tiny. A number that
    becomes infinite or NaN has no error, and one that saturates may have one of many bits.
    """
    f, t = r.format, target_of(r, C32)
    inward = r.mode in (
        RoundingMode.TIES_TO_EVEN,
        RoundingMode.TIES_TO_AWAY,
        RoundingMode.TOWARD_ZERO,
    )
    least = 0.0 if inward and f.emin < f.precision else f.min_positive
    lowest = max(f.emin, f.precision - C32.bias - 1)  # 1 / ulp is at most 2^127
    if lowest > f.emin:
        least = max(least, 2.0**lowest)
    if f.precision == 1:  # 1 / ulp may be below binary32's normal numbers
        least = math.inf
    saturates = min(t.over_positive, t.over_negative) < C32.infinity
    most = bits_of(f.max_finite, C32) if saturates else C32.magnitude
    return Narrow(bits_of(least, C32), most, judged(f, C32)._replace(emin=lowest + C32.bias))


@njit
def _judge(
    x: np.ndarray,
    y: np.ndarray,
    f: Judged,
    narrow: Narrow,
    counts: np.ndarray,
    sums: np.ndarray,
) -> tuple[int, float]:
    """Add BLOCK events to counts and to the sums in LANES parts, as `_count` and `_sum` do.

    The arrays x and y hold bits of binary32 numbers. Returns the bits of the largest |ulps| and the
    sum of signed ulps, added up as in `_row_sum`. The next block is fetched meanwhile, since the
    processor reads ahead by itself only where a loop waits for memory.
    """
    flags = (0, 0, 0, 0, 0, 0, 0, 0, 0)
    top, row = lanes.spread(0.0), lanes.four_zeros()
    total, absolute = lanes.load(sums, 0), lanes.load(sums, LANES)
    squares, absolute_ulps = lanes.load(sums, 2 * LANES), lanes.load(sums, 3 * LANES)
    square_ulps = lanes.load(sums, 4 * LANES)
    for j in range(0, BLOCK, WIDTH):
        lanes.prefetch(x, j + BLOCK)
        lanes.prefetch(y, j + BLOCK)
        before, after = lanes.words(x, j), lanes.words(y, j)
        if _are_narrow(before, narrow):
            e32 = _judged_narrow(before, after, narrow.format)
            flags = _plus_flags(flags, e32)
            error, ulps = lanes.widened(e32[10]), lanes.widened(e32[11])
        else:
            e = _judged_wide(before, after, f)
            flags = _plus_flags(flags, e)
            error, ulps = e[10], e[11]
        size = abs(ulps)
        total = lanes.plus_parts(total, error)
        absolute = lanes.plus_parts(absolute, abs(error))
        squares = lanes.plus_parts(squares, error * error)
        absolute_ulps = lanes.plus_parts(absolute_ulps, size)
        square_ulps = lanes.plus_parts(square_ulps, ulps * ulps)
        row = lanes.plus_parts(row, ulps)
        top = lanes.where(size > top, size, top)
    counts[0] += BLOCK
    counts[1] += flags[2] + flags[3]
    for c in range(9):
        counts[2 + c] += flags[c]
    lanes.store(sums, 0, total)
    lanes.store(sums, LANES, absolute)
    lanes.store(sums, 2 * LANES, squares)
    lanes.store(sums, 3 * LANES, absolute_ulps)
    lanes.store(sums, 4 * LANES, square_ulps)
    largest = 0.0
    for one_size in lanes.numbers(top):
        largest = max(largest, one_size)
    p, q, r, s = lanes.numbers(row)
    return bits_of_float(largest), (p + q) + (r + s)


@njit
def _are_narrow(before: Any, narrow: Narrow) -> bool:
    """Return whether arithmetic in binary32 has the errors of all numbers of a vector."""
    a = before & _MAGNITUDE32
    return lanes.counted((a > narrow.most) | ((a > 0) & (a < narrow.least))) == 0


@njit
def _judged_wide(before: Any, after: Any, f: Judged) -> Any:
    """Return what `classify` returns, for vectors of bits of binary32 numbers."""
    x, y = lanes.float_of_word(before), lanes.float_of_word(after)
    a, b = before & _MAGNITUDE32, after & _MAGNITUDE32
    return _classify_wide(lanes.widened(x), lanes.widened(y), a, b, f)


@njit
def _judged_narrow(before: Any, after: Any, f: Judged) -> Any:
    """Return the same with binary32 errors, for numbers that are narrow."""
    x, y = lanes.float_of_word(before), lanes.float_of_word(after)
    return _classify_narrow(x, y, before & _MAGNITUDE32, after & _MAGNITUDE32, f)


@njit
def _plus_flags(counts: Any, e: Any) -> Any:
    """Return counts of all flags of `classify` but the first, with those of a vector added."""
    return (
        counts[0] + lanes.counted(e[1]),
        counts[1] + lanes.counted(e[2]),
        counts[2] + lanes.counted(e[3]),
        counts[3] + lanes.counted(e[4]),
        counts[4] + lanes.counted(e[5]),
        counts[5] + lanes.counted(e[6]),
        counts[6] + lanes.counted(e[7]),
        counts[7] + lanes.counted(e[8]),
        counts[8] + lanes.counted(e[9]),
    )


@njit
def _find_at_once(x: np.ndarray, y: np.ndarray, f: Judged, top: float) -> int:
    """Return the index of the first of BLOCK events whose |ulps| is `top`, as `_find` does."""
    for j in range(0, BLOCK, WIDTH):
        e = _judged_wide(lanes.words(x, j), lanes.words(y, j), f)
        found = lanes.flagged(abs(e[11]) == top)
        if found:
            first: int = lanes.ones((found & -found) - 1)
            return j + first
    return -1


@compiled
def _round_and_collect(
    x: np.ndarray,
    y: np.ndarray,
    random: np.ndarray,
    t: Target,
    f: Judged,
    f32: Judged,
    narrow: Narrow,
    counts: np.ndarray,
    sums: np.ndarray,
) -> tuple[float, int]:
    """Round the bits of binary32 numbers x to y, and add the events to counts and sums.

    Returns the peak and its index, which is -1 for empty arrays. In each PIECE numbers the sums are
    added up in LANES parts. y may be x; `random` is used in the stochastic mode only.
    """
    before, after, valid = np.zeros(BLOCK), np.zeros(BLOCK), np.ones(BLOCK, np.bool_)
    error, ulps, kept = np.zeros(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK, np.int32)
    parts, peak, place, signed = np.zeros(5 * LANES), -1, -1, 0.0
    for lo in range(0, x.size, BLOCK):
        size = min(BLOCK, x.size - lo)
        part, rounded = x[lo : lo + size], y[lo : lo + size]
        if in_place(x, y):
            kept[:size] = part
            part = kept[:size]
        if t.mode == EVEN:
            _round_even(part, rounded, t)
        elif t.mode == STOCHASTIC:
            _round_stochastic(part, rounded, random[lo : lo + size], t)
        else:
            _round_any(part, rounded, t)
        if size == BLOCK:
            top, row = _judge(part, rounded, f32, narrow, counts, parts)
            if top > peak:
                peak, place = top, lo + _find_at_once(part, rounded, f32, float_of_bits(top))
        else:
            _widen(part, rounded, before, after)
            error[size:], ulps[size:] = 0.0, 0.0
            top = _count(before[:size], after[:size], valid[:size], f, counts, error, ulps)
            _sum(error, ulps, parts.reshape(5, LANES))
            row = _row_sum(ulps[:size])
            if top > peak:
                peak, place = top, lo + _find(ulps[:size], valid[:size], top)
        signed += row
        if (lo + size) % PIECE == 0 or lo + size == x.size:
            for n in range(5):
                sums[n + (n > 2)] += parts[n * LANES : (n + 1) * LANES].sum()
            sums[3] += signed
            parts[:], signed = 0.0, 0.0
    return float_of_bits(max(peak, 0)), place


@njit
def _widen(x: np.ndarray, y: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
    """Write the binary32 numbers with the bits x and y to before and after."""
    a, b = x.view(np.float32), y.view(np.float32)
    for i in range(x.size):
        before[i], after[i] = a[i], b[i]


def rounded_with_stats(
    x: np.ndarray, r: Rounding, random: np.ndarray | None, out: np.ndarray | None
) -> tuple[np.ndarray, Stats]:
    """Return a rounded float32 array and the summary of its events, in one pass over memory."""
    result = np.empty(x.shape, x.dtype) if out is None else out
    flat, rounded = np.ascontiguousarray(x).reshape(-1), result.reshape(-1)
    if np.may_share_memory(flat, rounded) and flat.ctypes.data != rounded.ctypes.data:
        flat = flat.copy()
    source, target = flat.view(np.int32), rounded.view(np.int32)
    lots = np.empty(0, np.int32) if random is None else np.ascontiguousarray(random).reshape(-1)
    f = r.format
    asked = (target_of(r, C32), judged(f), judged(f, C32), narrow_of(r))

    def piece(lo: int, hi: int) -> Stats:
        counts, sums = np.zeros(11, np.int64), np.zeros(6)
        peak, place = _round_and_collect(
            source[lo:hi], target[lo:hi], lots[lo:hi], *asked, counts, sums
        )
        return Stats.of(counts, sums, peak, lo + place)

    return result, functools.reduce(Stats.__add__, over_threads(piece, x.size))
