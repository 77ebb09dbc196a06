"""Statistics of rounding events: the Numba kernels of the NumPy executor."""

import functools
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.backends.numba import lanes
from roundscope.emu.backends.numba.jit import closure, compiled, njit
from roundscope.emu.backends.numba.lanes import LANES
from roundscope.emu.backends.numba.rounding import (
    LOOPS32,
    bits_of_float,
    float_of_bits,
    in_place,
    over_threads,
    where,
)
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.roundings.rule import C32, C64, EVEN, STOCHASTIC, Target, bits_of, target_of
from roundscope.emu.stats.classify import Judged, build_classify, judged
from roundscope.emu.stats.summary import Stats

_MAGNITUDE, _MAGNITUDE32 = C64.magnitude, C32.magnitude


@njit
def _power_of_two(exponent: int) -> float:
    return float_of_bits(exponent << 52)


_classify = build_classify(where, _power_of_two, closure("classify"))
_classify_lanes = build_classify(lanes.where, lanes.power_of_two, closure("lanes"), C32)
_round_even, _round_any, _round_stochastic = LOOPS32
BLOCK = 1024
PIECE = 1 << 15  # in `round_with_stats`, the sums of so many events are added to those before
_HALF = bits_of(0.5, C32)


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


class Plain(NamedTuple):
    """Where the errors of a rounding are binary32 numbers, and nothing else is to be noticed.

    least   bits of the smallest positive such number
    most    bits of the largest such number; up to it nothing overflows
    floor   the biased exponent from which on 1 / ulp is a binary32 number; it is that of 2^emin if
            it can be
    """

    least: int
    most: int
    floor: int


def plain_of(r: Rounding) -> Plain:
    """Return where the errors of a rounding are binary32 numbers, as `_judge` computes them.

    From the smallest number of the format on, an error is a multiple of the argument's last bit,
    and has at most 23 bits. Below, it is the argument or, by Sterbenz' lemma, exact in rounding to
    nearest. In other modes it may be the smallest number less a tiny one. In ulps it has as many
    bits; binary32 holds them unless 1 / ulp is below 1 and the argument is tiny.
    """
    f = r.format
    inward = r.mode in (
        RoundingMode.TIES_TO_EVEN,
        RoundingMode.TIES_TO_AWAY,
        RoundingMode.TOWARD_ZERO,
    )
    least = 0.0 if inward and f.emin < f.precision else f.min_positive
    lowest = max(f.emin, f.precision - C32.bias - 1)  # 1 / ulp is at most 2^127
    if lowest > f.emin:
        least = max(least, 2.0**lowest)
    ulp = 2.0 ** (max(f.emax, f.emin) - f.precision + 1)
    most = f.max_finite // ulp * ulp  # the largest number may lie between two of the format
    if f.precision == 1:  # 1 / ulp may be below binary32's normal numbers
        most = 0.0
    return Plain(bits_of(least, C32), bits_of(most, C32), lowest + C32.bias)


@njit
def _judge(
    x: np.ndarray,
    y: np.ndarray,
    f: Judged,
    plain: Plain,
    counts: np.ndarray,
    sums: np.ndarray,
) -> tuple[int, float]:
    """Add BLOCK events to counts and to the sums in LANES parts, as `_count` and `_sum` do.

    The arrays hold bits of binary32 numbers. Returns the bits of the largest |ulps| and the sum of
    signed ulps, added up as in `_row_sum`. Eight numbers that are all plain, as nearly all are in
    practice, are judged in binary32, which gives the same errors and flags in half the time.
    """
    ties = ties_away = away = toward = carries = overflow = underflow = subnormal = nan = 0
    top = lanes.spread(0.0)
    row = lanes.lower_half(top)
    total, absolute = lanes.load(sums, 0), lanes.load(sums, LANES)
    squares, absolute_ulps = lanes.load(sums, 2 * LANES), lanes.load(sums, 3 * LANES)
    square_ulps = lanes.load(sums, 4 * LANES)
    for j in range(0, BLOCK, LANES):
        before, after = lanes.load(x, j), lanes.load(y, j)
        a, b = before & _MAGNITUDE32, after & _MAGNITUDE32
        x32, y32 = lanes.float_of_word(before), lanes.float_of_word(after)
        if lanes.flagged((a > plain.most) | ((a > 0) & (a < plain.least))):
            e = _classify_lanes(lanes.widened(x32), lanes.widened(y32), a, b, f)
            ties += lanes.counted(e[1])
            ties_away += lanes.counted(e[2])
            away += lanes.counted(e[3])
            toward += lanes.counted(e[4])
            carries += lanes.counted(e[5])
            overflow += lanes.counted(e[6])
            underflow += lanes.counted(e[7])
            subnormal += lanes.counted(e[8])
            nan += lanes.counted(e[9])
            error, ulps = e[10], e[11]
            squares = squares + error * error
            square_ulps = square_ulps + ulps * ulps
        else:
            exponent = lanes.where(a >> 23 > plain.floor, a >> 23, plain.floor)
            error32 = y32 - x32
            ulps32 = error32 * lanes.float_of_word((253 + f.precision - exponent) << 23)
            size = lanes.word_of_float(ulps32) & _MAGNITUDE32
            up, down = lanes.flagged(b > a), lanes.flagged(b < a)
            tie, zero = lanes.flagged(size == _HALF), lanes.flagged(b == 0)
            ties += lanes.ones(tie)
            ties_away += lanes.ones(tie & up)
            away += lanes.ones(up)
            toward += lanes.ones(down)
            carries += lanes.counted(b >> 23 > exponent)
            underflow += lanes.ones(down & zero)
            subnormal += lanes.counted(b < f.min_normal) - lanes.ones(zero)
            error, ulps = lanes.widened(error32), lanes.widened(ulps32)
            squares = lanes.plus_square(squares, error)
            square_ulps = lanes.plus_square(square_ulps, ulps)
        size_of_ulps = abs(ulps)
        total, absolute = total + error, absolute + abs(error)
        absolute_ulps = absolute_ulps + size_of_ulps
        row = row + lanes.lower_half(ulps)
        row = row + lanes.upper_half(ulps)
        top = lanes.where(size_of_ulps > top, size_of_ulps, top)
    flags = (ties, ties_away, away, toward, carries, overflow, underflow, subnormal, nan)
    counts[0] += BLOCK
    counts[1] += away + toward
    for c in range(9):
        counts[2 + c] += flags[c]
    lanes.store(sums, 0, total)
    lanes.store(sums, LANES, absolute)
    lanes.store(sums, 2 * LANES, squares)
    lanes.store(sums, 3 * LANES, absolute_ulps)
    lanes.store(sums, 4 * LANES, square_ulps)
    largest = 0.0
    for size in lanes.numbers(top):
        largest = max(largest, size)
    p, q, r, s = lanes.numbers(row)
    return bits_of_float(largest), (p + q) + (r + s)


@njit
def _find_at_once(x: np.ndarray, y: np.ndarray, f: Judged, top: float) -> int:
    """Return the index of the first of BLOCK events whose |ulps| is `top`, as `_find` does."""
    for j in range(0, BLOCK, LANES):
        before, after = lanes.load(x, j), lanes.load(y, j)
        a, b = before & _MAGNITUDE32, after & _MAGNITUDE32
        x32, y32 = lanes.float_of_word(before), lanes.float_of_word(after)
        e = _classify_lanes(lanes.widened(x32), lanes.widened(y32), a, b, f)
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
    plain: Plain,
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
            top, row = _judge(part, rounded, f32, plain, counts, parts)
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
    asked = (target_of(r, C32), judged(f), judged(f, C32), plain_of(r))

    def piece(lo: int, hi: int) -> Stats:
        counts, sums = np.zeros(11, np.int64), np.zeros(6)
        peak, place = _round_and_collect(
            source[lo:hi], target[lo:hi], lots[lo:hi], *asked, counts, sums
        )
        return Stats.of(counts, sums, peak, lo + place)

    return result, functools.reduce(Stats.__add__, over_threads(piece, x.size))
