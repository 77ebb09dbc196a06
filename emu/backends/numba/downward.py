"""Sums of products on NumPy arrays as AMD's CDNA3 adds them (`emu.sums.matrix_cores`), compiled.

Vector lanes compute one column each, as in `emu.backends.numba.sums`. Factors are finite.
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.numba.jit import compiled
from roundscope.emu.backends.numba.rounding import RULE64, bits_of_float, float_of_bits
from roundscope.emu.backends.numba.sums import COLUMNS, EXPONENT, ONE_TWICE
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.roundings.rule import C64, EVEN, Target, target_of
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.emu.sums.aligned import Factors

_even, _any, *_ = RULE64
_BEYOND = 2.0**128


@compiled
def _fold(
    a: np.ndarray,
    w_a: np.ndarray,
    b: np.ndarray,
    w_b: np.ndarray,
    total: np.ndarray,
    chunk: int,
    groups: int,
    bits: int,
    bits_sum: int,
    least: float,
    emin: int,
    t: Target,
) -> None:
    """Add the products of a and b to total, chunk by chunk, for the rows of one thread.

    least: c counts as 0 below this share of the largest binade.
    """
    tops, sums = np.empty((groups, COLUMNS)), np.empty((groups, COLUMNS))
    for left in range(0, total.shape[1], COLUMNS):
        right = min(left + COLUMNS, total.shape[1])
        for lo in range(0, a.shape[0], chunk):
            hi = min(lo + chunk, a.shape[0])
            for i in range(total.shape[0]):
                for g in range(groups):
                    own = slice(lo + g, hi, groups)
                    _top(w_a[own, i], w_b[own, left:right], tops[g])
                    _cut(a[own, i], b[own, left:right], tops[g], sums[g], bits << 52)
                _leave(total[i, left:right], tops, sums, bits, bits_sum, least, emin, t)


@compiled
def _top(w_a: np.ndarray, w_b: np.ndarray, top: np.ndarray) -> None:
    """Write the largest binade of the products of each column to top, 0 where there is none."""
    top[:] = 0.0
    for k in range(w_a.size):
        w = w_a[k]
        for j in range(w_b.shape[1]):
            v = w * w_b[k, j]
            top[j] = v if v > top[j] else top[j]


@compiled
def _cut(a: np.ndarray, b: np.ndarray, top: np.ndarray, sums: np.ndarray, kept: int) -> None:
    """Write the sum of the products of each column, of which each is cut toward zero."""
    sums[:] = 0.0
    for k in range(a.size):
        x = a[k]
        for j in range(b.shape[1]):
            p = x * b[k, j]
            p = np.copysign(np.inf, p) if abs(p) >= _BEYOND else p
            sums[j] += np.trunc(p * _per_unit(top[j], kept))
    for j in range(b.shape[1]):
        sums[j] *= _unit(top[j], kept)


@compiled
def _leave(
    row: np.ndarray,
    tops: np.ndarray,
    sums: np.ndarray,
    bits: int,
    bits_sum: int,
    least: float,
    emin: int,
    t: Target,
) -> None:
    """Write the rounded sums to row, from the sums of the groups."""
    kept, fine, smallest = bits << 52, bits_sum << 52, (emin + 1023) << 52
    for j in range(row.size):
        top, c = 0.0, row[j]
        for g in range(tops.shape[0]):
            top = max(top, tops[g, j])
        products, plain = 0.0, c
        for g in range(tops.shape[0]):
            plain += sums[g, j]
            products += np.floor(sums[g, j] * _per_unit(top, kept))
        products *= _unit(top, kept)
        e = float_of_bits(max(bits_of_float(c) & EXPONENT, smallest))
        most = max(top, 0.0 if c == 0.0 else e)
        own = np.floor(c * _per_unit(most, kept)) * _unit(most, kept)
        own = 0.0 if abs(c) < most * least else own
        before = np.floor(products * _per_unit(most, fine)) * _unit(most, fine) + own
        s = bits_of_float(before)
        y = float_of_bits(_even(s, t) if t.mode == EVEN else _any(s, t))
        y = 0.0 if before == 0.0 else y
        row[j] = y if np.isfinite(plain) else plain


@compiled
def _per_unit(top: float, kept: int) -> float:
    """Return 2^F / top for a power of two, or for 0 a number with which 0 becomes 0."""
    return float_of_bits(ONE_TWICE + kept - bits_of_float(1.0 if top == 0.0 else top))


@compiled
def _unit(top: float, kept: int) -> float:
    """Return top / 2^F for a power of two, or for 0 that of 1."""
    return float_of_bits(bits_of_float(1.0 if top == 0.0 else top) - kept)


def downward(a: Factors, b: Factors, init: np.ndarray, acc: Accumulator) -> np.ndarray:
    """Return what `emu.sums.aligned.aligned` returns for `CutDownward`, for finite factors."""
    total = np.array(init, dtype=np.float64, order="C")
    x, w_x, y, w_y = (np.ascontiguousarray(v) for v in (*a, *b))
    kept: Any = acc.alignment
    least = 0.0 if kept.least is None else 2.0**-kept.least
    fixed = (acc.chunk, kept.groups, kept.bits, kept.bits_sum, least, acc.step.format.emin)
    t = target_of(acc.step, C64)

    def rows(lo: int, hi: int) -> None:
        _fold(x[:, lo:hi], w_x[:, lo:hi], y, w_y, total[lo:hi], *fixed, t)

    over_threads(rows, total.shape[0], x.size * total.shape[1])
    return total
