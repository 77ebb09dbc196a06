"""Roundings that casts are known to make by mistake, to name the one that a cast makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode
from roundscope.emu.testing.probes import VIAS

Behavior = Callable[[np.ndarray], np.ndarray]


def named(x: np.ndarray, actual: np.ndarray, r: Rounding) -> str:
    """Return the words about which known rounding gives a cast's results.

    Args:
        x: the numbers that were rounded, a float64 array.
        actual: what the cast made of them, a float64 array of the same shape.
        r: the rounding that was expected, which differs from `actual` somewhere.

    Returns:
        A line with the rounding that explains all results or, if there is none, two lines with the
        one that explains the most.
    """
    best, most = "", -1
    for name, behavior in behaviors(r):
        same = int(equal(behavior(x), actual).sum())
        if same == x.size:
            return f"it behaves as {name}"
        if same > most:
            best, most = name, same
    return (
        f"no known rounding explains all results; the nearest explains {most:,} of {x.size:,}:\n"
        f"  {best}"
    )


def equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return where two float64 arrays are equal with the signs of zeros, or both NaN."""
    same = (x == y) & (np.signbit(x) == np.signbit(y))
    both: np.ndarray = same | (np.isnan(x) & np.isnan(y))
    return both


def behaviors(r: Rounding) -> Iterator[tuple[str, Behavior]]:
    """Yield the names and functions of roundings that may stand where r was meant.

    They are r itself, every other mode and overflow policy, r with subnormal numbers flushed to
    zero, r after a rounding to a wider format or after a cut that loses the sticky bit, and no
    rounding at all. The functions take float64 arrays.
    """
    policies = [r.overflow, *(o for o in _policies(r.format) if o is not r.overflow)]
    modes = [r.mode, *(m for m in RoundingMode if m is not r.mode)]
    for mode in (m for m in modes if m is not RoundingMode.STOCHASTIC):
        for policy in policies:
            other = replace(r, mode=mode, overflow=policy)
            yield _words(other), partial(_round, r=other)
    mode = RoundingMode.TIES_TO_EVEN if r.mode is RoundingMode.STOCHASTIC else r.mode
    for policy in policies:
        yield from _twisted(replace(r, overflow=policy, mode=mode))
    yield "no rounding: it returns its input", np.array


def _twisted(r: Rounding) -> Iterator[tuple[str, Behavior]]:
    """Yield r with one more step before or behind it."""
    words, p = _words(r), r.format.precision
    yield f"{words} with subnormal results flushed to zero", partial(_flushed, r=r)
    yield f"{words} with subnormal inputs flushed to zero", partial(_flushed_before, r=r)
    for via in VIAS:
        if via != r.format.name and format_named(via).precision > p:
            first = Rounding(format=format_named(via))
            yield f"{words} after rounding to {via}", partial(_twice, first=first, r=r)
    for kept in range(p + 1, min(p + 4, 53)):
        yield (
            f"{words} after a cut to {kept} significant bits (the sticky bit is lost)",
            partial(_cut, bits=kept, r=r),
        )


def _words(r: Rounding) -> str:
    """Return "bf16 ties-to-even", with the overflow policy where the format has several."""
    policy = f", overflow={r.overflow}" if len(_policies(r.format)) > 1 else ""
    return f"{r.format.name} {r.mode}{policy}"


def _policies(f: Format) -> list[Overflow]:
    return [
        *([Overflow.INF] if f.inf else []),
        *([Overflow.NAN] if f.nan else []),
        Overflow.SATURATE,
    ]


def _round(x: np.ndarray, r: Rounding) -> np.ndarray:
    rounded: np.ndarray = round_to(x, r)
    return rounded


def _twice(x: np.ndarray, first: Rounding, r: Rounding) -> np.ndarray:
    return _round(_round(x, first), r)


def _flushed(x: np.ndarray, r: Rounding) -> np.ndarray:
    y = _round(x, r)
    return np.where(np.abs(y) < r.format.min_normal, np.copysign(0.0, y), y)


def _flushed_before(x: np.ndarray, r: Rounding) -> np.ndarray:
    return _round(np.where(np.abs(x) < r.format.min_normal, np.copysign(0.0, x), x), r)


def _cut(x: np.ndarray, bits: int, r: Rounding) -> np.ndarray:
    """Return x, cut toward zero to some leading bits of its float32 significand, then rounded."""
    # numbers below 2^-126 have the spacing of those above it, as in float32
    exponent = np.where(np.isfinite(x) & (x != 0), np.maximum(np.frexp(x)[1], -125), 0)
    return _round(np.ldexp(np.trunc(np.ldexp(x, bits - exponent)), exponent - bits), r)
