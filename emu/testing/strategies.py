"""Hypothesis strategies of formats, roundings and numbers that are hard to round.

Numbers are drawn as an exponent, a whole number of ulps and a part of one, and a sign, so they
shrink to short ones near 1: the simplest tie of BF16 is 1.00390625. All kinds of numbers are drawn
in the same way, since Hypothesis would prefer a kind that takes fewer draws. This module imports
hypothesis, so `emu.testing` does not import it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat, block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.emu.numbers import check_whole
from roundscope.emu.roundings.modes import NanPolicy, Overflow, Rounding, RoundingMode, rounding
from roundscope.emu.testing.given import carrier_named
from roundscope.emu.testing.probes import probes_of

# in the order in which examples shrink to them
_NAMED = ("bf16", "fp16", "e4m3fn", "e5m2", "fp32", *NAMED)
_NORMAL, _SUBNORMAL = 1.0, 0.5  # kinds of magnitudes, told from the specials 0, infinity and NaN
# half of the numbers are ties or lie beside one
_PARTS = st.one_of(
    st.just(0.0),
    st.just(0.5),
    st.sampled_from([0.5, 0.25, 0.5]),
    st.integers(1, 1023).map(lambda k: k / 1024),
)
_SEEDS = st.integers(0, 2**32 - 1)


def formats(*, carrier: str = "float64", max_bits: int = 64) -> st.SearchStrategy[Format]:
    """Return a strategy of number formats: the named ones, and e<x>m<y> of any size.

    Args:
        carrier: the dtype of the arrays that hold the numbers, "float64" or "float32"; only formats
            that `emu.round_to` rounds such arrays to are drawn.
        max_bits: the largest number of bits of a format.

    Returns:
        A strategy of `Format`, which shrinks to bf16.

    Raises:
        ValueError: for an unknown carrier, or if no named format has so few bits.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.emu.testing.strategies import formats
        >>> find(formats(max_bits=8), lambda f: f.inf).name
        'e5m2'
    """
    wide = carrier_named(carrier).itemsize > 4
    named = [format_named(name) for name in dict.fromkeys(_NAMED)]
    small = [f for f in named if f.bits <= max_bits and (wide or f.fits_binary32)]
    if not small:
        raise ValueError(f"max_bits={max_bits}: no format is so narrow; give 4 or more")
    most_exponent, most_fraction = (11, 52) if wide else (8, 23)
    ieee = st.builds(
        lambda x, y: format_named(f"e{x}m{y}"),
        st.integers(2, most_exponent),
        st.integers(1, most_fraction),
    )
    return st.one_of(st.sampled_from(small), ieee.filter(lambda f: f.bits <= max_bits))


@st.composite
def roundings(
    draw: st.DrawFn,
    format: str | Format | None = None,
    *,
    modes: Sequence[str | RoundingMode] = tuple(RoundingMode),
    carrier: str = "float64",
) -> Rounding:
    """Return a strategy of roundings: a format, a mode, policies of overflow and NaN, and a seed.

    Args:
        draw: filled in by Hypothesis.
        format: the name of a format or a `Format`; by default one of `formats`.
        modes: the modes to draw from, of which the first is the one that examples shrink to.
        carrier: the dtype of the arrays that hold the numbers, for `formats`.

    Returns:
        A strategy of `Rounding`. The seed is 0 outside the stochastic mode, and the policy of NaN
        is "keep" in a format with NaN, where it changes nothing.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.emu.testing.strategies import roundings
        >>> str(find(roundings("e4m3fn"), lambda r: r.mode == "toward-zero"))
        'e4m3fn:toward-zero:saturate'
    """
    f = draw(formats(carrier=carrier)) if format is None else rounding(format).format
    mode = draw(st.sampled_from(list(modes)))
    policies = [None, Overflow.SATURATE]
    policies += [Overflow.INF] * f.inf + [Overflow.NAN] * f.nan
    seed = draw(_SEEDS) if mode == RoundingMode.STOCHASTIC else 0
    overflow = draw(st.sampled_from(policies))
    nan = NanPolicy.KEEP if f.nan else draw(st.sampled_from(list(NanPolicy)))
    return rounding(f, mode, overflow=overflow, nan=nan, seed=seed)


def bit_patterns(format: str | Format) -> st.SearchStrategy[int]:
    """Return a strategy of all codes of a format, those of NaN and infinities included.

    Args:
        format: the name of a format or a `Format`.

    Returns:
        A strategy of whole numbers from 0 to 2^bits - 1; sign, exponent field and fraction are
        their bits.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.emu.testing.strategies import bit_patterns
        >>> hex(find(bit_patterns("bf16"), lambda code: code > 0x7F80))
        '0x7f81'
    """
    return st.integers(0, (1 << rounding(format).format.bits) - 1)


def values(
    format: str | Format | None = None,
    carrier: str = "float32",
    *,
    infinities: bool = False,
    nan: bool = False,
) -> st.SearchStrategy[float]:
    """Return a strategy of numbers that are hard to round to a format.

    They are numbers of the format, midpoints of two neighbors, the carrier's numbers next to both,
    the ends of binades, the largest and smallest numbers and the thresholds around them, subnormal
    numbers, zeros of both signs, and numbers anywhere between and beyond these.

    Args:
        format: the name of a format or a `Format`; by default a format of `formats`, drawn anew for
            each number.
        carrier: the dtype that holds the numbers: "float32", "float64", "float16" or "bfloat16".
        infinities: whether infinities are drawn too.
        nan: whether NaN is drawn too.

    Returns:
        A strategy of Python floats that the carrier holds exactly.

    Raises:
        ValueError: for an unknown format or carrier.

    Example:
        >>> from hypothesis import find
        >>> from roundscope import emu
        >>> from roundscope.emu.testing.strategies import values
        >>> find(values("bf16"), lambda x: emu.explain(x, "bf16").tie)
        1.00390625
    """
    if format is None:
        return _held_formats(carrier_named(carrier)).flatmap(
            lambda f: values(f, carrier, infinities=infinities, nan=nan)
        )
    f, dtype = rounding(format).format, carrier_named(carrier)
    specials = [math.inf] * infinities + [math.nan] * nan
    return st.builds(
        functools.partial(_value, f, dtype),
        _exponents(f, dtype),
        _significands(f),
        st.sampled_from([*(_NORMAL,) * 8, _SUBNORMAL, _SUBNORMAL, 0.0, *specials]),
        st.sampled_from([None, None, math.inf, 0.0]),
        _PARTS,
        st.sampled_from([1.0, -1.0]),
    )


def arrays(
    format: str | Format | None = None,
    carrier: str = "float32",
    *,
    shape: int | tuple[int, ...] | st.SearchStrategy[tuple[int, ...]] | None = None,
    infinities: bool = False,
    nan: bool = False,
) -> st.SearchStrategy[np.ndarray]:
    """Return a strategy of arrays of the numbers of `values`.

    In an array of more than about ten numbers most are equal to one of them, which is drawn too:
    that keeps large arrays quick.

    Args:
        format: the name of a format or a `Format`; by default one of `formats` for each array.
        carrier: the dtype of the arrays, as in `values`.
        shape: a shape or a strategy of shapes; by default one to three axes of at most 8.
        infinities: whether infinities are drawn too.
        nan: whether NaN is drawn too.

    Returns:
        A strategy of NumPy arrays of the carrier's dtype, which shrinks to arrays that repeat one
        number if that is enough.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.emu.testing.strategies import arrays
        >>> find(arrays("bf16", shape=3), lambda x: (x >= 1).any()).tolist()
        [1.0, 1.0, 1.0]
    """
    dtype = carrier_named(carrier)
    shapes = hnp.array_shapes(max_dims=3, max_side=8) if shape is None else shape
    if format is None:
        return _held_formats(dtype).flatmap(
            lambda f: arrays(f, carrier, shape=shape, infinities=infinities, nan=nan)
        )
    numbers = values(format, carrier, infinities=infinities, nan=nan)
    drawn = hnp.arrays(np.float64, shapes, elements=numbers, fill=numbers)
    return drawn.map(lambda x: x.astype(dtype))


@st.composite
def block_formats(draw: st.DrawFn, *, changes: bool = True) -> BlockFormat:
    """Return a strategy of block formats: the named ones and, of these, other rules and modes.

    Args:
        draw: filled in by Hypothesis.
        changes: whether the scale rule, the mode and the overflow policy of the elements are drawn
            too; otherwise the named formats are drawn as they are.

    Returns:
        A strategy of `BlockFormat`, which shrinks to mxfp8_e4m3.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.emu.testing.strategies import block_formats
        >>> str(find(block_formats(), lambda f: f.rule == "rceil" and f.size == 32))
        'e4m3fn:saturate[32]*e8m0fnu:rceil'
    """
    base = block_format(draw(st.sampled_from(list(BLOCK_NAMED))))
    if not changes:
        return base
    element = draw(roundings(base.element.format))
    rule = draw(st.sampled_from([base.rule, *(r for r in ScaleRule if _allows(base, r))]))
    return replace(base, element=element, rule=rule)


@st.composite
def blocks(
    draw: st.DrawFn,
    format: str | BlockFormat,
    count: int = 1,
    carrier: str = "float32",
) -> np.ndarray:
    """Return a strategy of whole blocks whose largest magnitudes lie where scale rules decide.

    The largest magnitude of a block is m 2^k, where m is the threshold of a scale rule (a power of
    two, the largest number of the element format, 1.75 or the end of a binade after rounding) or
    the carrier's number on either side of it, and k is any exponent of the carrier, also the
    smallest and the largest. The other numbers are hard to round to the element format under that
    scale.

    Args:
        draw: filled in by Hypothesis.
        format: the name of a block format or a `BlockFormat`.
        count: the number of blocks.
        carrier: the dtype of the array, "float32" or "float64".

    Returns:
        A strategy of arrays of shape (rows, count * size) whose blocks run along the last axis;
        rows is 1 for formats without tiles.

    Raises:
        ValueError: for an unknown block format or carrier, or a count below 1.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.emu.testing.strategies import blocks
        >>> x = find(blocks("mxfp4"), lambda x: abs(x).max() > 6)
        >>> x.shape, bool(abs(x).max() > 6)
        ((1, 32), True)
    """
    f, dtype = block_format(format), carrier_named(carrier)
    check_whole("count", count, "it is the number of blocks, such as 1")
    if count < 1:
        raise ValueError(f"count={count}: an array has at least one block")
    return np.concatenate([draw(_block(f, dtype)) for _ in range(count)], axis=1)


def _held_formats(dtype: np.dtype) -> st.SearchStrategy[Format]:
    return formats(carrier="float64" if dtype.itemsize > 4 else "float32")


@st.composite
def _block(draw: st.DrawFn, f: BlockFormat, dtype: np.dtype) -> np.ndarray:
    lowest, highest = _exponent_range(dtype)
    ends = st.sampled_from([lowest, lowest + 1, highest])
    exponent = draw(st.one_of(st.integers(-8, 8), st.integers(lowest, highest), ends))
    threshold = draw(_beside(st.sampled_from(_thresholds(f.element.format)), dtype))
    top = _carried(math.ldexp(threshold, exponent), dtype)
    ratios = _ratios(f.element.format)
    fill = ratios if f.size * f.rows > 64 else st.just(0.0)
    x = draw(hnp.arrays(np.float64, (f.rows, f.size), elements=ratios, fill=fill))
    with np.errstate(all="ignore"):
        x = np.ldexp(x, exponent - f.element.format.emax).astype(dtype)
    block: np.ndarray = np.clip(x, -top, top).astype(dtype)
    at = draw(st.integers(0, block.size - 1))
    block.flat[at] = top * draw(st.sampled_from([1.0, -1.0]))
    return block


@functools.cache
def _ratios(f: Format) -> st.SearchStrategy[float]:
    """Return a strategy of numbers that are hard to round to an element format.

    For a small format it draws from a list of them, which is quicker than `values`.
    """
    if f.bits > 8:
        return values(f, "float32")
    x = probes_of(f, np.dtype(np.float32)).astype(np.float64)
    x = x[np.abs(x) <= f.max_finite]
    with np.errstate(divide="ignore"):
        near_one = np.abs(np.log2(np.abs(x)))
    order = np.lexsort((np.signbit(x), near_one))
    return st.sampled_from([0.0, *x[order].tolist()])


def _thresholds(f: Format) -> list[float]:
    """Return the significands, from 1 to 2, at which scale rules of an element format decide."""
    largest = math.ldexp(f.max_finite, -f.emax)
    return list(dict.fromkeys([1.0, largest, 1.75, 2.0 - 2.0**-f.precision]))


def _allows(f: BlockFormat, rule: ScaleRule) -> bool:
    try:
        replace(f, rule=rule)
    except ValueError:
        return False
    return True


def _exponents(f: Format, dtype: np.dtype) -> st.SearchStrategy[int]:
    """Return a strategy of exponents: those of the format, its ends, and any of the carrier."""
    lowest, highest = _exponent_range(dtype)
    least, most = max(f.emin, lowest), min(f.emax, highest)
    ends = [least, most, min(f.emax + 1, highest)]
    return st.one_of(
        st.integers(least, most),
        st.sampled_from([0, *ends] if least <= 0 <= most else ends),
        st.integers(lowest, highest),
    )


def _significands(f: Format) -> st.SearchStrategy[int]:
    """Return a strategy of significands without their leading bit, and often of the extremes."""
    per_binade = 1 << (f.precision - 1)
    top = int(math.ldexp(f.max_finite, f.precision - 1 - f.emax)) - per_binade
    ends = list(dict.fromkeys([0, top, per_binade - 1]))
    return st.one_of(st.integers(0, per_binade - 1), st.sampled_from(ends))


def _value(
    f: Format,
    dtype: np.dtype,
    exponent: int,
    significand: int,
    kind: float,
    move: float | None,
    part: float,
    sign: float,
) -> float:
    """Return the carrier's number nearest to what was drawn.

    significand   without its leading bit, in ulps
    kind          `_NORMAL`, `_SUBNORMAL`, or the zero, infinity or NaN that the result is
    move          infinity or 0.0 for the carrier's next number toward it, or None
    part          a part of an ulp that is added, in [0, 1)
    """
    if kind not in (_NORMAL, _SUBNORMAL):
        return sign * kind
    leading = 1 << (f.precision - 1) if kind == _NORMAL else 0
    place = exponent if kind == _NORMAL else f.emin
    units = leading + significand + part
    return sign * _moved(_scaled(units, place - f.precision + 1), move, dtype)


def _beside(numbers: st.SearchStrategy[float], dtype: np.dtype) -> st.SearchStrategy[float]:
    """Return a strategy of numbers moved by one number of the carrier, or not at all."""
    moves = st.sampled_from([None, math.inf, 0.0])
    return st.builds(lambda x, to: _moved(x, to, dtype), numbers, moves)


def _moved(x: float, to: float | None, dtype: np.dtype) -> float:
    """Return the carrier's number nearest to x, or the finite one that follows it toward `to`."""
    near = _carried(x, dtype)
    if to is None:
        return near
    with np.errstate(all="ignore"):
        after = float(np.nextafter(np.array(near).astype(dtype), np.array(to).astype(dtype)))
    return after if math.isfinite(after) else near


def _exponent_range(dtype: np.dtype) -> tuple[int, int]:
    """Return the exponents of the carrier's smallest and largest numbers, subnormals included."""
    info = _info(dtype)
    return int(info.minexp) - int(info.nmant), int(info.maxexp) - 1


def _carried(x: float, dtype: np.dtype) -> float:
    """Return the carrier's number nearest to x; its largest one for finite numbers beyond."""
    with np.errstate(over="ignore"):
        near = float(np.array(x).astype(dtype))
    return near if math.isfinite(near) or not math.isfinite(x) else float(_info(dtype).max)


def _scaled(units: float, exponent: int) -> float:
    """Return units * 2^exponent, or the largest binary64 number if that is beyond it."""
    try:
        return math.ldexp(units, exponent)
    except OverflowError:
        return math.ldexp(2.0 - 2.0**-52, 1023)


def _info(dtype: np.dtype) -> Any:
    if dtype.name != "bfloat16":
        return np.finfo(dtype)
    import ml_dtypes

    limits: Any = ml_dtypes.finfo
    return limits(dtype)
