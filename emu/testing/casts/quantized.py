"""What a quantizer made of an array: numbers, elements and scales, in a common form.

A quantizer may return only the numbers that its blocks represent. Then the scale of each block is
inferred: it is the one under which most of the block's numbers are the elements that a cast gives.
In E4M3 and other formats with many exponents a number is often an element under several scales.
Only numbers that are subnormal under a scale, and those beyond the largest element, tell scales
apart, so blocks whose numbers fit several scales equally well get the asked one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.blocks.api import to_blocks
from roundscope.emu.blocks.format import E8M0, INTEGERS, BlockFormat
from roundscope.emu.blocks.layout import Layout, layout_of, to_lines
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode
from roundscope.emu.stats.comparison import agree as same
from roundscope.emu.testing.casts.behaviors import FaultyCast
from roundscope.emu.testing.casts.elements import is_allowed
from roundscope.emu.testing.casts.hadamard import seen_by
from roundscope.emu.testing.casts.records import Function, Numbers
from roundscope.emu.testing.casts.returned import call, in_words, numbers_of
from roundscope.emu.testing.foreign import ForeignError

POWERS = range(-3, 4)  # inferred scales of power-of-two rules, in powers of two about FLOOR's
STEPS = range(-2, 3)  # other inferred scales, in numbers of the scale format about the asked one


class Scales(NamedTuple):
    """Inferred scales, the elements under them, how well each block fits, and if it fits at all.

    A block fits if each of its numbers is an element, times the scale, next to its quotient.
    """

    scales: Numbers
    elements: Numbers
    score: Numbers
    fit: np.ndarray


def inferred(
    x: Numbers,
    y: Numbers,
    asked: Numbers,
    f: BlockFormat,
    carried: float,
    cast: FaultyCast | None = None,
) -> Scales:
    """Return the scales that explain best what a quantizer returned.

    Args:
        x: blocks of inputs, divided by the scale of the whole array.
        y: what the quantizer made of them, divided by it too.
        asked: the scales that the asked rule gives, which are preferred among equals.
        f: the asked block format.
        carried: the relative error that y may have.
        cast: how elements are supposed to be rounded; by default as asked.
    """
    first, *others = _candidates(asked, x, f)
    elements, each = fitting(x, y, first, f, carried, cast)
    best, score, is_asked = first, each.sum(axis=1), each.all(axis=1)
    fit: np.ndarray = np.asarray(is_asked)
    for scales in others:
        under, each = fitting(x, y, scales, f, carried, cast)
        found, is_perfect = each.sum(axis=1), (each == 2).all(axis=1)
        # numbers that the asked scale explains are not said to have another one, but for blocks
        # that another power of two explains better in every number
        better = (found > score) & (~is_asked | (is_perfect & f.power_of_two))
        best, score = np.where(better, scales, best), np.where(better, found, score)
        fit = np.where(better, each.all(axis=1), fit)
        elements = np.where(better[:, None], under, elements)
    return Scales(best, elements, score, fit)


def fitting(
    x: Numbers,
    y: Numbers,
    scales: Numbers,
    f: BlockFormat,
    carried: float,
    cast: FaultyCast | None = None,
) -> tuple[Numbers, Numbers]:
    """Return what the elements would be under these scales, and how well each number fits.

    A score is 2 for the element of the cast, and 1 for one next to the quotient. Where an element
    is beyond float32 once it is multiplied, the result cannot say which element it was, and it
    counts as that of the cast.
    """
    product, r, e = scales[:, None], f.element, f.element.format
    q, p = x / product, y / product
    if carried:  # a result is moved to the element that it misses by a last bit
        nearest = round_to(p, Rounding(format=e, overflow=Overflow.SATURATE))
        p = np.where(np.abs(p - nearest) <= carried * np.abs(nearest), nearest, p)
    low = Rounding(format=e, mode=RoundingMode.TOWARD_ZERO, overflow=Overflow.SATURATE)
    clipped = (np.abs(p) == e.max_finite) & (np.abs(q) > e.max_finite)
    near = (p == round_to(p, low)) & ((np.abs(p - q) < ulp_of(q, e)) | clipped)
    good, expected = is_allowed(p, q, r)
    if cast is not None:
        expected = cast(q, r)
        good = same(p, expected)
    beyond = ~good & np.isinf(y) & (y == (expected * product).astype(np.float32))
    return np.where(beyond, expected, p), np.where(good | beyond, 2, near.astype(int))


def _candidates(asked: Numbers, x: Numbers, f: BlockFormat) -> list[Numbers]:
    """Return scales that a block may have, those of the asked rule first."""
    if f.power_of_two:
        top = np.abs(x).max(axis=1)
        top = np.where(np.isfinite(top) & (top > 0), top, 1.0)
        floor = np.ldexp(1.0, np.frexp(top)[1] - 1 - f.element.format.emax)
        return [asked, *(np.minimum(np.ldexp(floor, k), f.scale.max_finite) for k in POWERS)]
    steps = [asked * (1 + k * f.scale.epsilon) for k in STEPS if k]
    near = [np.maximum(round_to(s, Rounding(format=f.scale)), f.scale.min_positive) for s in steps]
    return [asked, *near]


CARRIED = 2.0**-22  # relative error of a number in float32 that is a product of two scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """An array of blocks and what a quantizer made of it; all arrays have a row for each block.

    Attributes:
        x: the inputs, float64.
        y: the numbers that the results represent.
        elements: the results divided by their scales.
        scales: the scales of the blocks.
        tensor: the scale of the whole array, which multiplies those of the blocks.
        given: whether the quantizer returned its scales; otherwise they are inferred.
        score: how well inferred scales explain the results of each block; zeros if given.
        fit: whether the results of each block fit a scale at all; all do if it is given.
        cast: how the elements are supposed to be rounded where scales are inferred; None for the
            asked rounding.
        carried: the relative error that a returned number may have from its two scales.
        words: what the quantizer returned, in words.
    """

    x: Numbers
    y: Numbers
    elements: Numbers
    scales: Numbers
    tensor: float
    given: bool
    score: Numbers
    fit: np.ndarray
    cast: FaultyCast | None = None
    carried: float = 0.0
    words: str

    @property
    def quotients(self) -> Numbers:
        """The inputs divided by the scales that the quantizer used."""
        quotients: Numbers = self.x / (self.tensor * self.scales)[:, None]
        return quotients


def quantized(function: Function, x: np.ndarray, f: BlockFormat) -> Quantized:
    """Return what a quantizer makes of a float32 array (rows, K).

    The inputs in the result are the numbers that are quantized, behind a transform if there is one.

    Raises:
        ForeignError: the function raised an error or returned something that cannot be read.
    """
    returned = call(function, x)
    x = seen_by(function, x)
    at = layout_of(x.shape, f, -1)
    lines = to_lines(np, x, at).astype(np.float64)
    if isinstance(returned, (tuple, list)):
        return _of_parts(returned, lines, at, f)
    y = numbers_of(returned, f.element.format, x.shape, "result")
    words = in_words(returned, f.element.format)
    carried = _carried(returned) if not f.power_of_two else 0.0
    y = to_lines(np, y, at)
    asked, tensor = expected_scales(x, f)
    scales = inferred(lines / tensor, y / tensor, asked, f, carried)
    return Quantized(
        x=lines, y=y, tensor=tensor, given=False, carried=carried, words=words, **scales._asdict()
    )


def under_cast(found: Quantized, x: np.ndarray, f: BlockFormat, cast: FaultyCast) -> Quantized:
    """Return what a quantizer made of x, its scales inferred again for another cast of elements."""
    if found.given:
        return found
    asked, tensor = expected_scales(x, f)
    scales = inferred(found.x / tensor, found.y / tensor, asked, f, found.carried, cast)
    return replace(found, cast=cast, **scales._asdict())


def expected_scales(x: np.ndarray, f: BlockFormat) -> tuple[Numbers, float]:
    """Return the scales that a block format gives to the blocks of an array, and that of all."""
    blocks = to_blocks(x, f)
    return np.asarray(blocks.scales, np.float64).reshape(-1), float(np.asarray(blocks.tensor))


def _of_parts(parts: Sequence[Any], lines: Numbers, at: Layout, f: BlockFormat) -> Quantized:
    if len(parts) not in (2, 3):
        raise ForeignError(
            "result",
            f"a tuple of {len(parts)}, must be (elements, scales) or (elements, scales,"
            " tensor_scale)",
        )
    e, s = f.element.format, f.scale
    unit = unit_of(f)
    is_code = unit == 1 or str(getattr(parts[0], "dtype", "")).removeprefix("torch.")[:4] == "uint"
    of_units = parts[0] if is_code else parts[0] / unit
    elements = to_lines(np, numbers_of(of_units, e, at.shape, "elements"), at)
    scales = numbers_of(parts[1], s, at.scales, "scales").reshape(-1) * unit
    tensor = 1.0 if f.tensor_scale is None else f.tensor_scale
    if len(parts) == 3:
        tensor = float(np.asarray(parts[2], np.float64).reshape(()))
    words = f"elements: {in_words(parts[0], e)}; scales: {in_words(parts[1], s)}"
    y = (elements * (scales * tensor)[:, None]).astype(np.float32).astype(np.float64)
    return Quantized(
        x=lines,
        y=y,
        elements=elements,
        scales=scales,
        tensor=tensor,
        given=True,
        score=np.zeros(len(lines)),
        fit=np.ones(len(lines), bool),
        words=words,
    )


def unit_of(f: BlockFormat) -> float:
    """Return what returned integers k are counted in: k / 64 (int8) or k / 4 (int4) is an element.

    Quantizers return k and the scale of k, which is so much smaller. In MX formats elements are
    k / 64 by their specification.
    """
    is_grid = f.element.format in INTEGERS.values() and f.scale != E8M0
    return 2.0 ** (f.element.format.precision - 1) if is_grid else 1.0


def fits(found: Quantized, scales: Numbers, f: BlockFormat) -> np.ndarray:
    """Return for each block whether it has a scale, or may have it where scales are inferred.

    A block whose numbers fit no scale may have any.
    """
    if found.given:
        equal: np.ndarray = found.scales == scales
        return equal
    x, y = found.x / found.tensor, found.y / found.tensor
    _, score = fitting(x, y, scales, f, found.carried, found.cast)
    enough: np.ndarray = (score.sum(axis=1) >= found.score) | (found.scales == scales)
    return enough


def _carried(returned: Any) -> float:
    """Return how far from tensor * scale * element a returned number may be, relative to it."""
    wide = {"float32": CARRIED, "float64": CARRIED, "float16": 2.0**-9}
    return wide.get(str(returned.dtype).removeprefix("torch."), 2.0**-6)
