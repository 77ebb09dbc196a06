"""Sums of products on NumPy arrays: in ascending order, and as tensor cores add.

These are the Numba kernels of the NumPy executor. A sum in ascending order runs on one thread. One
of tensor cores, `emu.sums.aligned` for finite operands, has vector lanes that each compute one
column; there F is the number of fractional bits that are kept.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from roundscope.emu.backends.numba.jit import closure, compiled, intrinsic
from roundscope.emu.backends.numba.rounding import (
    RULE64,
    bits_of_float,
    float_of_bits,
    where,
)
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.roundings.modes import BINARY32, Rounding
from roundscope.emu.roundings.rule import C64, EVEN, Target, target_of
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.emu.sums.aligned import Factors
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
    pairs = zip(arrays, narrow, strict=True)
    return narrow if all(np.array_equal(x, y, equal_nan=True) for x, y in pairs) else None


_MAGNITUDE, _SIGN = C64.magnitude, ~C64.magnitude
EXPONENT = 0x7FF0_0000_0000_0000
ONE_TWICE = 2046 << 52  # for a power of two x, the bits of 1 / x are this number less those of x
COLUMNS = 256  # how many columns of a chunk of b and its binades fit into the first cache


@compiled
def _fold_aligned(
    a: np.ndarray,
    w_a: np.ndarray,
    b: np.ndarray,
    w_b: np.ndarray,
    total: np.ndarray,
    chunk: int,
    bits: int,
    zero: int,
    emin: int,
    group: int,
    t: Target,
) -> None:
    """Add the products of a and b to total, chunk by chunk, for the rows of one thread."""
    least, smallest, kept = 2.0**zero, (emin + 1023) << 52, bits << 52
    top, units, own = np.empty(COLUMNS), np.empty(COLUMNS), np.empty(COLUMNS)
    for left in range(0, total.shape[1], COLUMNS):
        right = min(left + COLUMNS, total.shape[1])
        for lo in range(0, a.shape[0], chunk):
            hi = min(lo + chunk, a.shape[0])
            for i in range(total.shape[0]):
                row = total[i, left:right]
                _top(row, w_a[lo:hi, i], w_b[lo:hi, left:right], top, smallest)
                padded = chunk - (hi - lo) >= group
                _zeros(row, w_a[lo:hi, i], w_b[lo:hi, left:right], top, least, padded, group)
                if group == 1:
                    _units(row, a[lo:hi, i], b[lo:hi, left:right], top, units, kept)
                else:
                    _in_groups(row, a[lo:hi, i], b[lo:hi, left:right], top, units, kept, group, own)
                _leave(row, top, units, kept, t)


@compiled
def _top(row: np.ndarray, w_a: np.ndarray, w_b: np.ndarray, top: np.ndarray, smallest: int) -> None:
    """Write the largest binade of the terms of each column to top."""
    for j in range(row.size):
        e = max(bits_of_float(row[j]) & EXPONENT, smallest)
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
    group: int,
) -> None:
    """Raise top to `least`, the binade of a term of 0, in columns that have such a term.

    This changes something only if all other terms are smaller, which is rare.
    """
    for j in range(row.size):
        if top[j] < least:
            has_zero = padded or row[j] == 0.0
            for lo in range(0, w_a.size, group):
                largest = 0.0
                for k in range(lo, min(lo + group, w_a.size)):
                    largest = max(largest, w_a[k] * w_b[k, j])
                has_zero |= largest == 0.0
            if has_zero:
                top[j] = least


@compiled
def _own(row: np.ndarray, top: np.ndarray, units: np.ndarray, kept: int) -> None:
    """Write the running sum of each column in units of top / 2^F, cut to whole ones."""
    for j in range(row.size):
        units[j] = np.trunc(row[j] * _per_unit(top[j], kept))


@compiled
def _units(
    row: np.ndarray, a: np.ndarray, b: np.ndarray, top: np.ndarray, units: np.ndarray, kept: int
) -> None:
    """Write the sum of each column in units of top / 2^F, with each term cut to whole units."""
    _own(row, top, units, kept)
    for k in range(a.size):
        x = a[k]
        for j in range(row.size):
            units[j] += np.trunc(x * b[k, j] * _per_unit(top[j], kept))


@compiled
def _in_groups(
    row: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    top: np.ndarray,
    units: np.ndarray,
    kept: int,
    group: int,
    own: np.ndarray,
) -> None:
    """Write what `_units` writes where the exact sum of each group of products is cut."""
    _own(row, top, units, kept)
    for lo in range(0, a.size, group):
        own[:] = 0.0
        for k in range(lo, min(lo + group, a.size)):
            x = a[k]
            for j in range(row.size):
                own[j] += x * b[k, j]
        for j in range(row.size):
            units[j] += np.trunc(own[j] * _per_unit(top[j], kept))


@compiled
def _per_unit(top: float, kept: int) -> float:
    """Return 2^F / top, where top is a power of two."""
    return float_of_bits(ONE_TWICE + kept - bits_of_float(top))


@compiled
def _leave(row: np.ndarray, top: np.ndarray, units: np.ndarray, kept: int, t: Target) -> None:
    """Write the rounded sums to row; sums that were infinite or NaN stay unchanged."""
    bits = row.view(np.int64)
    for j in range(row.size):
        s = bits_of_float(units[j] * float_of_bits(bits_of_float(top[j]) - kept))
        y = _even(s, t) if t.mode == EVEN else _any(s, t)
        y = (s & _SIGN) | EXPONENT if (s & _MAGNITUDE) >> 52 > t.largest >> 52 else y
        if bits[j] & _MAGNITUDE < EXPONENT:
            bits[j] = 0 if y & _MAGNITUDE == 0 else y


def aligned(a: Factors, b: Factors, init: np.ndarray, acc: Accumulator) -> np.ndarray:
    """Return what `emu.sums.aligned.aligned` returns, for finite factors."""
    total = np.array(init, dtype=np.float64, order="C")
    x, w_x, y, w_y = (np.ascontiguousarray(v) for v in (*a, *b))
    kept: Any = acc.alignment
    group = getattr(kept, "group", 1)
    fixed = (acc.chunk, kept.bits, kept.zero, acc.step.format.emin, group)
    t = target_of(acc.step, C64)

    def rows(lo: int, hi: int) -> None:
        _fold_aligned(x[:, lo:hi], w_x[:, lo:hi], y, w_y, total[lo:hi], *fixed, t)

    over_threads(rows, total.shape[0], x.size * total.shape[1])
    return total
