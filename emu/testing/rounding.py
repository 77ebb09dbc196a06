"""The assertion that a cast rounds as a format, a mode and an overflow policy say.

Its message names the rounding that the cast makes by mistake, if it is a known one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.arrays import ArrayLike
from roundscope.emu.errors import known_arguments
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode, rounding
from roundscope.emu.shown import shown
from roundscope.emu.testing import differences
from roundscope.emu.testing.differences import distance
from roundscope.emu.testing.foreign import call_foreign
from roundscope.emu.testing.given import carrier_named, floats_of, wide
from roundscope.emu.testing.probes import CLASSES, VIAS, classes_of, probes_of

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
    policies = [r.overflow, *(o for o in overflows(r.format)[::-1] if o is not r.overflow)]
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
    yield f"{words} with subnormal results flushed to zero", partial(flushed, r=r)
    yield f"{words} with subnormal inputs flushed to zero", partial(flushed_before, r=r)
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
    policy = f", overflow={r.overflow}" if len(overflows(r.format)) > 1 else ""
    return f"{r.format.name} {r.mode}{policy}"


def overflows(f: Format) -> list[Overflow]:
    """Return the overflow policies that a format can have."""
    return [Overflow.SATURATE, *[Overflow.NAN] * f.nan, *[Overflow.INF] * f.inf]


def _round(x: np.ndarray, r: Rounding) -> np.ndarray:
    rounded: np.ndarray = round_to(x, r)
    return rounded


def _twice(x: np.ndarray, first: Rounding, r: Rounding) -> np.ndarray:
    return _round(_round(x, first), r)


def flushed(x: np.ndarray, r: Rounding) -> np.ndarray:
    """Return rounded numbers, with zero for results below the smallest normal number."""
    y = _round(x, r)
    return np.where(np.abs(y) < r.format.min_normal, np.copysign(0.0, y), y)


def flushed_before(x: np.ndarray, r: Rounding) -> np.ndarray:
    """Return rounded numbers, those below the smallest normal number taken for zero."""
    return _round(np.where(np.abs(x) < r.format.min_normal, np.copysign(0.0, x), x), r)


def _cut(x: np.ndarray, bits: int, r: Rounding) -> np.ndarray:
    """Return x, cut toward zero to some leading bits of its float32 significand, then rounded."""
    # numbers below 2^-126 have the spacing of those above it, as in float32
    exponent = np.where(np.isfinite(x) & (x != 0), np.maximum(np.frexp(x)[1], -125), 0)
    return _round(np.ldexp(np.trunc(np.ldexp(x, bits - exponent)), exponent - bits), r)


@known_arguments
def assert_rounds_as(
    cast: Callable[[Any], Any],
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | Overflow | None = None,
    seed: int | None = None,
    inputs: ArrayLike | None = None,
    carrier: str = "float32",
) -> None:
    """Assert that a cast rounds every probe as `emu.round_to` does.

    The probes are every number of the format (of a format of more than 16 bits a selection), every
    midpoint of two neighbors, the carrier's numbers on both sides of these, numbers on which
    rounding through BF16, FP16, TF32 or FP32 first shows, subnormal numbers, numbers around the
    threshold of overflow and beyond, zeros, infinities and NaN. NaN is left out for a format
    without NaN, whose conversions are free in what they make of it. +0 and -0 differ; all NaN are
    equal.

    Args:
        cast: a function that takes a NumPy array of one axis and returns its rounded numbers as
            floats of any dtype: an array of NumPy (ml_dtypes included) or JAX, or a tensor of
            PyTorch. `lambda x: torch.from_numpy(x).to(torch.bfloat16)` is a cast.
        format: the name of a format, a `Format` or a `Rounding`.
        mode: a `RoundingMode` or its name; ties-to-even by default. A stochastic cast has to use
            the random bits of `emu.round_to`.
        overflow: what a number beyond the largest finite one becomes, an `Overflow` or its name; by
            default what `Format.saturates` says. NVIDIA's conversions saturate to e4m3fn and e5m2,
            and those of ml_dtypes do not.
        seed: the seed of the stochastic mode's random bits.
        inputs: numbers to round in place of the probes, an array of any shape of floats; they are
            converted to the carrier, which has to hold them.
        carrier: the dtype of the array that the cast is given: "float32", "float64", "float16" or
            "bfloat16".

    Raises:
        AssertionError: if a result differs. The message counts the differences in each class of
            probes ("ties", "subnormals", "overflow" ...), says which known rounding explains all
            results if one does, and draws the rounding of one number.
        ValueError: for an unknown name, a format that the carrier does not hold, or inputs that are
            not numbers of the carrier.
        TypeError: if the cast does not return an array of floats.

    Example:
        >>> import ml_dtypes
        >>> import numpy as np
        >>> from roundscope.emu.testing import assert_rounds_as
        >>> assert_rounds_as(lambda x: x.astype(ml_dtypes.bfloat16), "bf16")
        >>> def cut(x):  # keeps the upper 16 bits
        ...     return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
        >>> try:
        ...     assert_rounds_as(cut, "bf16", inputs=[1.0, 1.005859375, -1.01171875])
        ... except AssertionError as error:
        ...     print(*str(error).splitlines()[:5], sep="\\n")
        the cast does not round as bf16, ties-to-even: 2 of 3 probes differ (66.7 %)
          numbers                   0 of          1   numbers of the format
          ties                      1 of          1   midpoints of two neighbors
          between                   1 of          1   all other numbers
        it behaves as bf16 toward-zero, overflow=inf
    """
    __tracebackhide__ = True
    r = rounding(format, mode, overflow=overflow, seed=seed)
    dtype = carrier_named(carrier)
    if not callable(cast):
        raise TypeError(f"cast={shown(cast)}: give a function of an array")
    x = probes_of(r.format, dtype) if inputs is None else _inputs(inputs, dtype)
    expected = wide(np.asarray(round_to(x, r)))
    actual = _results(cast, x)
    wrong = ~equal(actual, expected)
    if wrong.any():
        raise AssertionError(_message(x, actual, expected, wrong, r))


def _inputs(inputs: ArrayLike, carrier: np.dtype) -> np.ndarray:
    """Return the inputs as numbers of the carrier; raise ValueError for one that it lacks."""
    given = np.ravel(floats_of(inputs, "inputs"))
    with np.errstate(over="ignore", invalid="ignore"):
        x = given.astype(carrier)
    lost = np.flatnonzero((wide(x) != wide(given)) & ~np.isnan(wide(given)))
    if lost.size:
        raise ValueError(
            f"inputs: {float(given[lost[0]])!r} is not a number of {carrier.name}; give a wider"
            " carrier, or round the inputs first"
        )
    return x


def _results(cast: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """Return the results of the cast in float64; raise AssertionError for another shape."""
    __tracebackhide__ = True
    results = floats_of(call_foreign(cast, x.copy(), what="cast"), "what the cast returns")
    if results.shape != x.shape:
        raise AssertionError(
            f"the cast returns shape {results.shape} for an array of shape {x.shape}"
        )
    return wide(results)


def _message(
    x: np.ndarray, actual: np.ndarray, expected: np.ndarray, wrong: np.ndarray, r: Rounding
) -> str:
    values, kinds = wide(x), classes_of(x, r.format)
    at = _example(values, wrong, kinds)
    f, kind = r.format, list(CLASSES)[kinds[at]]
    mode = "" if str(r.mode) in str(r) else f", {r.mode}"
    counted = differences.counted(int(wrong.sum()), x.size, "probes")
    return differences.joined(
        f"the cast does not round as {r}{mode}: {counted}",
        *_counts(wrong, kinds),
        named(values, actual, r),
        f"for example in the class '{kind}', at index {at}:",
        differences.written("before", float(values[at]), f),
        differences.written("actual", float(actual[at]), f),
        differences.written("expected", float(expected[at]), f),
        differences.apart(int(distance(actual[at : at + 1], expected[at : at + 1], f)[0]), f),
        differences.drawing(float(values[at]), r),
    )


def _counts(wrong: np.ndarray, kinds: np.ndarray) -> list[str]:
    lines = []
    for n, (name, words) in enumerate(CLASSES.items()):
        total, bad = int((kinds == n).sum()), int((wrong & (kinds == n)).sum())
        if total:
            lines.append(f"  {name:<16} {bad:>10,} of {total:>10,}   {words}")
    return lines


def _example(x: np.ndarray, wrong: np.ndarray, kinds: np.ndarray) -> int:
    """Return the index of a wrong result that is easy to read.

    Its class is the one with the most wrong results; in it, the number is the one
    nearest to 1 on a logarithmic scale, where numbers above 1 come before those below.
    """
    counts = np.bincount(kinds[wrong], minlength=len(CLASSES))
    among = np.flatnonzero(wrong & (kinds == int(np.argmax(counts))))
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.abs(np.log2(np.abs(x[among]))) + (x[among] < 1)
    return int(among[np.argmin(np.where(np.isnan(far), np.inf, far))])
