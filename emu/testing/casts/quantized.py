"""What a quantizer made of an array: numbers, elements and scales, in a common form.

A quantizer may return only the numbers that its blocks represent. Then the scale of each block is
inferred: it is the one under which most of the block's numbers are elements next to their inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.blocks.api import to_blocks
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import Layout, layout_of, to_lines
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode
from roundscope.emu.testing.casts.classes import is_allowed
from roundscope.emu.testing.casts.records import Function, Numbers
from roundscope.emu.testing.casts.returned import CallError, call, in_words, numbers_of

POWERS = range(-3, 4)  # inferred scales of power-of-two rules, in powers of two about FLOOR's
STEPS = range(-2, 3)  # other inferred scales, in numbers of the scale format about the asked one
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
    carried: float = 0.0
    words: str

    @property
    def quotients(self) -> Numbers:
        """The inputs divided by the scales that the quantizer used."""
        quotients: Numbers = self.x / (self.tensor * self.scales)[:, None]
        return quotients

    def part(self, kept: np.ndarray) -> "Quantized":
        """Return the blocks that a boolean array or a slice selects."""
        arrays = {
            name: getattr(self, name)[kept] for name in ("x", "y", "elements", "scales", "score")
        }
        return replace(self, **arrays)


def quantized(function: Function, x: np.ndarray, f: BlockFormat) -> Quantized:
    """Return what a quantizer makes of a float32 array (rows, K).

    Raises:
        CallError: the function raised an error or returned something that cannot be read.
    """
    returned = call(function, x)
    at = layout_of(x.shape, f, -1)
    lines = to_lines(np, x, at).astype(np.float64)
    if isinstance(returned, (tuple, list)):
        return _of_parts(returned, lines, at, f)
    y = numbers_of(returned, f.element.format, x.shape, "result")
    words = f"numbers: {in_words(returned, f.element.format)}"
    carried = _carried(returned) if not f.power_of_two else 0.0
    return _inferred(lines, to_lines(np, y, at), to_blocks(x, f), f, words, carried)


def expected_scales(x: np.ndarray, f: BlockFormat) -> tuple[Numbers, float]:
    """Return the scales that a block format gives to the blocks of an array, and that of all."""
    blocks = to_blocks(x, f)
    return np.asarray(blocks.scales, np.float64).reshape(-1), float(np.asarray(blocks.tensor))


def _of_parts(parts: Sequence[Any], lines: Numbers, at: Layout, f: BlockFormat) -> Quantized:
    """Return elements and scales as a quantizer returned them."""
    if len(parts) not in (2, 3):
        raise CallError(
            f"result: a tuple of {len(parts)}, must be (elements, scales) or (elements, scales,"
            " tensor_scale)"
        )
    e, s = f.element.format, f.scale
    elements = to_lines(np, numbers_of(parts[0], e, at.shape, "elements"), at)
    scales = numbers_of(parts[1], s, at.scales, "scales").reshape(-1)
    tensor = float(np.asarray(parts[2], np.float64).reshape(())) if len(parts) == 3 else 1.0
    words = f"elements: {in_words(parts[0], e)}; scales: {in_words(parts[1], s)}"
    y = elements * (scales * tensor)[:, None]
    return Quantized(
        x=lines,
        y=y,
        elements=elements,
        scales=scales,
        tensor=tensor,
        given=True,
        score=np.zeros(len(lines)),
        words=words,
    )


def fits(found: Quantized, scales: Numbers, f: BlockFormat) -> np.ndarray:
    """Return for each block whether it has a scale, or may have it where scales are inferred."""
    if found.given:
        equal: np.ndarray = found.scales == scales
        return equal
    _, score = _under(found.x, found.y, found.tensor * scales, f, found.carried)
    return score >= found.score


def _carried(returned: Any) -> float:
    """Return how far from tensor * scale * element a returned number may be, relative to it."""
    wide = {"float32": CARRIED, "float64": CARRIED, "float16": 2.0**-9}
    return wide.get(str(returned.dtype).removeprefix("torch."), 2.0**-6)


def _inferred(
    x: Numbers, y: Numbers, asked: Any, f: BlockFormat, words: str, carried: float
) -> Quantized:
    """Return the numbers that a quantizer returned with the scales that explain them best."""
    tensor = float(np.asarray(asked.tensor))
    best, count, kept = np.zeros(len(x)), np.full(len(x), -1), np.empty_like(y)
    for scales in _candidates(np.asarray(asked.scales, np.float64).reshape(-1), x, f):
        elements, found = _under(x, y, tensor * scales, f, carried)
        better = found > count
        best, count = np.where(better, scales, best), np.maximum(found, count)
        kept = np.where(better[:, None], elements, kept)
    return Quantized(
        x=x,
        y=y,
        elements=kept,
        scales=best,
        tensor=tensor,
        given=False,
        score=count,
        carried=carried,
        words=words,
    )


def _under(
    x: Numbers, y: Numbers, scales: Numbers, f: BlockFormat, carried: float
) -> tuple[Numbers, Numbers]:
    """Return what the elements would be under these scales, and how well each block fits."""
    product = scales[:, None]
    elements = _on_grid(y / product, f.element.format, carried)
    elements, score = _scored(x / product, elements, f.element, y, product)
    return elements, score.sum(axis=1)


def _candidates(asked: Numbers, x: Numbers, f: BlockFormat) -> list[Numbers]:
    """Return scales that a block may have, those of the asked rule first."""
    if f.power_of_two:
        low, high = f.scale.min_positive, f.scale.max_finite
        top = np.abs(x).max(axis=1)
        top = np.where(np.isfinite(top) & (top > 0), top, low)
        floor = np.ldexp(1.0, np.frexp(top)[1] - 1 - f.element.format.emax)
        return [asked, *(np.clip(np.ldexp(floor, k), low, high) for k in POWERS)]
    steps = [asked * (1 + k * f.scale.epsilon) for k in STEPS if k]
    near = [np.maximum(round_to(s, Rounding(format=f.scale)), f.scale.min_positive) for s in steps]
    return [asked, *near]


def _on_grid(p: Numbers, f: Format, carried: float) -> Numbers:
    """Return results divided by a scale, moved to the element that they miss by a last bit."""
    if not carried:
        return p
    nearest = round_to(p, Rounding(format=f, overflow=Overflow.SATURATE))
    return np.where(np.abs(p - nearest) <= carried * np.abs(nearest), nearest, p)


def _scored(
    q: Numbers, p: Numbers, r: Rounding, y: Numbers, product: Numbers
) -> tuple[Numbers, Numbers]:
    """Return elements and their scores: 2 for the asked element, 1 for one next to the quotient.

    Where an asked element is beyond float32 once it is multiplied, the result cannot say which
    element it was, and it counts as the asked one.
    """
    f = r.format
    low = Rounding(format=f, mode=RoundingMode.TOWARD_ZERO, overflow=Overflow.SATURATE)
    clipped = (np.abs(p) == f.max_finite) & (np.abs(q) > f.max_finite)
    near = (p == round_to(p, low)) & ((np.abs(p - q) < ulp_of(q, f)) | clipped)
    good, expected = is_allowed(p, q, r)
    beyond = ~good & np.isinf(y) & (y == (expected * product).astype(np.float32))
    return np.where(beyond, expected, p), np.where(good | beyond, 2, near.astype(int))
