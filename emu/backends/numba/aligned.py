"""`emu.sums.aligned` on NumPy arrays: one Numba kernel for finite operands.

The processor's vector lanes each compute one column. In this module F is the number of fractional
bits that are kept, as in `emu.sums.aligned`.
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.numba.jit import compiled
from roundscope.emu.backends.numba.rounding import (
    RULE64,
    bits_of_float,
    float_of_bits,
)
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.roundings.rule import C64, EVEN, Target, target_of
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.emu.sums.aligned import Factors

_even, _any, *_ = RULE64
_MAGNITUDE, _SIGN = C64.magnitude, ~C64.magnitude
_EXPONENT = 0x7FF0_0000_0000_0000
_ONE_TWICE = 2046 << 52  # for a power of two x, the bits of 1 / x are this number less those of x
_COLUMNS = 256  # how many columns of a chunk of b and its binades fit into the first cache


@compiled
def _fold(
    a: np.ndarray,
    w_a: np.ndarray,
    b: np.ndarray,
    w_b: np.ndarray,
    total: np.ndarray,
    chunk: int,
    bits: int,
    zero: int,
    emin: int,
    t: Target,
) -> None:
    """Add the products of a and b to total, chunk by chunk, for the rows of one thread."""
    least, smallest, kept = 2.0**zero, (emin + 1023) << 52, bits << 52
    top, units = np.empty(_COLUMNS), np.empty(_COLUMNS)
    for left in range(0, total.shape[1], _COLUMNS):
        right = min(left + _COLUMNS, total.shape[1])
        for lo in range(0, a.shape[0], chunk):
            hi = min(lo + chunk, a.shape[0])
            for i in range(total.shape[0]):
                row = total[i, left:right]
                _top(row, w_a[lo:hi, i], w_b[lo:hi, left:right], top, smallest)
                _zeros(row, w_a[lo:hi, i], w_b[lo:hi, left:right], top, least, hi - lo < chunk)
                _units(row, a[lo:hi, i], b[lo:hi, left:right], top, units, kept)
                _leave(row, top, units, kept, t)


@compiled
def _top(row: np.ndarray, w_a: np.ndarray, w_b: np.ndarray, top: np.ndarray, smallest: int) -> None:
    """Write the largest binade of the terms of each column to top."""
    for j in range(row.size):
        e = max(bits_of_float(row[j]) & _EXPONENT, smallest)
        top[j] = 0.0 if row[j] == 0.0 else float_of_bits(e)
    for k in range(w_a.size):
        w = w_a[k]
        for j in range(row.size):
            v = w * w_b[k, j]
            top[j] = v if v > top[j] else top[j]


@compiled
def _zeros(
    row: np.ndarray,
    w_a: np.ndarray,
    w_b: np.ndarray,
    top: np.ndarray,
    least: float,
    padded: bool,
) -> None:
    """Raise top to `least`, the binade of a term of 0, in columns that have such a term.

    This changes something only if all other terms are smaller, which is rare.
    """
    for j in range(row.size):
        if top[j] < least:
            has_zero = padded or row[j] == 0.0
            for k in range(w_a.size):
                has_zero |= w_a[k] * w_b[k, j] == 0.0
            if has_zero:
                top[j] = least


@compiled
def _units(
    row: np.ndarray, a: np.ndarray, b: np.ndarray, top: np.ndarray, units: np.ndarray, kept: int
) -> None:
    """Write the sum of each column in units of top / 2^F, with each term cut to whole units."""
    for j in range(row.size):
        units[j] = np.trunc(row[j] * _per_unit(top[j], kept))
    for k in range(a.size):
        x = a[k]
        for j in range(row.size):
            units[j] += np.trunc(x * b[k, j] * _per_unit(top[j], kept))


@compiled
def _per_unit(top: float, kept: int) -> float:
    """Return 2^F / top, where top is a power of two."""
    return float_of_bits(_ONE_TWICE + kept - bits_of_float(top))


@compiled
def _leave(row: np.ndarray, top: np.ndarray, units: np.ndarray, kept: int, t: Target) -> None:
    """Write the rounded sums to row; sums that were infinite or NaN stay unchanged."""
    bits = row.view(np.int64)
    for j in range(row.size):
        s = bits_of_float(units[j] * float_of_bits(bits_of_float(top[j]) - kept))
        y = _even(s, t) if t.mode == EVEN else _any(s, t)
        y = (s & _SIGN) | _EXPONENT if (s & _MAGNITUDE) >> 52 > t.largest >> 52 else y
        if bits[j] & _MAGNITUDE < _EXPONENT:
            bits[j] = 0 if y & _MAGNITUDE == 0 else y


def aligned(a: Factors, b: Factors, init: np.ndarray, acc: Accumulator) -> np.ndarray:
    """Return what `emu.sums.aligned.aligned` returns, for finite factors."""
    total = np.array(init, dtype=np.float64, order="C")
    x, w_x, y, w_y = (np.ascontiguousarray(v) for v in (*a, *b))
    kept: Any = acc.alignment
    fixed = (acc.chunk, kept.bits, kept.zero, acc.step.format.emin, target_of(acc.step, C64))

    def rows(lo: int, hi: int) -> None:
        _fold(x[:, lo:hi], w_x[:, lo:hi], y, w_y, total[lo:hi], *fixed)

    over_threads(rows, total.shape[0], x.size * total.shape[1])
    return total
