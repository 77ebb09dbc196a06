"""Probes of a cast: numbers on which wrong roundings show, and the class of each.

A class is decided by the number alone, so inputs of a user are sorted in the same way as those that
are built here.
"""

from __future__ import annotations

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.formats.codes import decode
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import Rounding

VIAS = ("bf16", "fp16", "tf32", "fp32")  # formats through which a cast may round by mistake
ALL = 1 << 15  # a format with at most this many magnitudes is probed on all of them
SAMPLES = 4096  # how many magnitudes of a wider format are drawn at random

# in the order in which a class is decided: a number belongs to the first that holds it
CLASSES = {
    "NaN": "NaN of both signs",
    "infinities": "both infinities",
    "zeros": "both zeros",
    "overflow": "magnitudes above the largest finite number",
    "subnormals": "magnitudes below the smallest normal number",
    "numbers": "numbers of the format",
    "ties": "midpoints of two neighbors",
    "beside ties": "next to a midpoint in the carrier",
    "double rounding": "changed by rounding through a wider format first",
    "beside numbers": "next to a number of the format in the carrier",
    "between": "all other numbers",
}


def probes_of(f: Format, carrier: np.dtype) -> np.ndarray:
    """Return numbers of the carrier, without repetition, that test a cast to a format.

    They are every number of the format (of a format of more than 16 bits a selection from every
    binade), every midpoint, the carrier's neighbors of both, numbers a little farther from the
    midpoints, on which rounding twice shows, the threshold of overflow and beyond, both zeros, both
    infinities and, if the format has NaN, NaN. A carrier of 16 bits gives all its numbers.

    Args:
        f: the format that the cast rounds to.
        carrier: the dtype of the numbers that the cast is given.

    Returns:
        An array of one axis of the carrier's dtype.
    """
    if carrier.itemsize == 2:
        finite = np.arange(1 << 16, dtype=np.uint16).view(carrier)
        with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
            finite = finite[np.isfinite(finite)]
    else:
        finite = _built(f, carrier)
    specials = [np.inf, -np.inf, *([np.nan, -np.nan] if f.nan else [])]
    return np.concatenate([finite, np.array(specials).astype(carrier)])


def classes_of(x: np.ndarray, f: Format) -> np.ndarray:
    """Return for every number of the carrier the index of its class in `CLASSES`.

    Args:
        x: an array of one axis, whose dtype is the carrier.
        f: the format that the numbers are rounded to.

    Returns:
        An array of whole numbers of x's shape.
    """
    with np.errstate(all="ignore"):  # NaN, infinities and the neighbors of the largest number
        v = x.astype(np.float64)
        magnitude, finite = np.abs(v), np.isfinite(v)
        position = _position(v, f)
        ends = (x.dtype.type(-np.inf), x.dtype.type(np.inf))
        beside = [_position(np.nextafter(x, end).astype(np.float64), f) for end in ends]
    holds = [
        np.isnan(v),
        np.isinf(v),
        v == 0,
        magnitude > f.max_finite,
        magnitude < f.min_normal,
        finite & (position == 0),
        finite & (position == 0.5),
        (beside[0] == 0.5) | (beside[1] == 0.5),
        _changed_by_two(v, f),
        (beside[0] == 0) | (beside[1] == 0),
        np.ones(v.shape, bool),
    ]
    first: np.ndarray = np.argmax(np.array(holds), axis=0)
    return first


def _built(f: Format, carrier: np.dtype) -> np.ndarray:
    """Return the finite probes of a carrier of 32 or 64 bits, in ascending order."""
    low, high = _gaps(f)
    middle = low + (high - low) / 2
    centers = np.concatenate([low, high, middle, [0.0, 2 * f.max_finite], _beyond(f, carrier)])
    with np.errstate(over="ignore"):
        exact = centers.astype(carrier)
    kept = exact[(exact == centers) & np.isfinite(exact)]
    top = carrier.type(np.inf)
    with np.errstate(over="ignore", under="ignore"):
        x = np.concatenate([kept, np.nextafter(kept, top), np.nextafter(kept, -top)])
    x = np.concatenate([x, _near(middle, high - low, f, carrier)])
    x = np.unique(np.abs(x[np.isfinite(x)]))
    return np.concatenate([-x[::-1], x])


def _gaps(f: Format) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of the format, and the number that follows each.

    The number behind the largest finite one is that which it would have without an upper bound of
    the exponent, so that the midpoint of the last gap is the threshold of overflow.
    """
    from roundscope.emu.backends.numba.ops import numpy_ops

    count = (1 << (f.bits - int(f.signed))) if f.bits < 64 else (1 << 63) - 1
    ranks = np.arange(count) if count <= ALL else _selected(count, f.precision)
    codes = ranks.astype(np.int64)
    # the codes of binary64 are its bits, and its sign bit is too large for `decode`
    x = codes.view(np.float64) if f.bits == 64 else decode(numpy_ops(), codes, f)
    low = np.unique(x[np.isfinite(x)])
    with np.errstate(over="ignore"):
        high = low + np.ldexp(1.0, _exponent(low, f) - f.precision + 1)
    finite = np.isfinite(high)
    return low[finite], high[finite]


def _selected(count: int, precision: int) -> np.ndarray:
    """Return ranks around both ends and the middle of every binade, and some at random."""
    per_binade = 1 << (precision - 1)
    starts = np.arange(0, count, per_binade, dtype=np.int64)
    offsets = np.array([0, 1, 2, per_binade // 2, per_binade // 2 + 1, -1, -2])
    ends = np.ravel(starts[:, None] + offsets)
    drawn = np.random.default_rng(0).integers(0, count, SAMPLES)
    ranks = np.concatenate([ends, drawn])
    return np.unique(ranks[(ranks >= 0) & (ranks < count)])


def _beyond(f: Format, carrier: np.dtype) -> np.ndarray:
    """Return powers of two beyond the format's largest and below its smallest number."""
    info = np.finfo(carrier)
    highest, lowest = int(info.maxexp) - 1, int(np.frexp(float(info.smallest_subnormal))[1]) - 1
    above = range(f.emax + 1, highest + 1)
    below = range(lowest, f.emin - f.precision + 1)
    largest = float(info.max)
    return np.array([2.0**e for e in (*above, *below)] + [largest])


def _near(middle: np.ndarray, gap: np.ndarray, f: Format, carrier: np.dtype) -> np.ndarray:
    """Return numbers so close to midpoints that rounding to a wider format reaches the midpoint."""
    parts = [np.zeros(0, carrier)]
    for via in map(format_named, VIAS):
        if via.precision > f.precision and via.holds(f):
            offset = np.ldexp(gap, f.precision - via.precision - 2)
            with np.errstate(all="ignore"):  # beyond the carrier on either side
                parts += [(middle + offset).astype(carrier), (middle - offset).astype(carrier)]
    return np.concatenate(parts)


def _changed_by_two(x: np.ndarray, f: Format) -> np.ndarray:
    """Return which numbers change if they are rounded to nearest even through a wider format."""
    r, changed = Rounding(format=f), np.zeros(x.shape, bool)
    once = round_to(x, r)
    for via in map(format_named, VIAS):
        if via.precision > f.precision and via.holds(f):
            twice = round_to(round_to(x, Rounding(format=via)), r)
            changed |= (twice != once) & ~np.isnan(once)
    return changed


def _exponent(x: np.ndarray, f: Format) -> np.ndarray:
    """Return the exponent whose spacing holds at x: that of x, at least the format's smallest."""
    return np.where(x == 0, f.emin, np.maximum(np.frexp(x)[1] - 1, f.emin))


def _position(x: np.ndarray, f: Format) -> np.ndarray:
    """Return where a magnitude lies between its neighbors in the format, from 0 up to below 1."""
    units = np.ldexp(np.abs(x), f.precision - 1 - _exponent(x, f))
    fraction: np.ndarray = units - np.floor(units)
    return fraction
