"""What a quantizer made of an array: numbers, elements and scales, in a common form.

A quantizer may return only the numbers that its blocks represent. Then the scale of each block is
inferred: it is the one under which most of the block's numbers are the elements that a cast gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.emu.blocks.api import to_blocks
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import Layout, layout_of, to_lines
from roundscope.emu.testing.casts.behaviors import FaultyCast
from roundscope.emu.testing.casts.inferred import fitting, inferred
from roundscope.emu.testing.casts.records import Function, Numbers
from roundscope.emu.testing.casts.returned import call, in_words, numbers_of
from roundscope.emu.testing.foreign import ForeignError

CARRIED = 2.0**-22  # relative error of a number in float32 that is a product of two scales


ARRAYS = ("x", "y", "elements", "scales", "score", "fit")  # those with a row for each block


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

    def part(self, kept: np.ndarray) -> "Quantized":
        """Return the blocks that a boolean array or a slice selects."""
        arrays = {name: getattr(self, name)[kept] for name in ARRAYS}
        return replace(self, **arrays)


def quantized(function: Function, x: np.ndarray, f: BlockFormat) -> Quantized:
    """Return what a quantizer makes of a float32 array (rows, K).

    Raises:
        ForeignError: the function raised an error or returned something that cannot be read.
    """
    returned = call(function, x)
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
    """Return elements and scales as a quantizer returned them."""
    if len(parts) not in (2, 3):
        raise ForeignError(
            "result",
            f"a tuple of {len(parts)}, must be (elements, scales) or (elements, scales,"
            " tensor_scale)",
        )
    e, s = f.element.format, f.scale
    elements = to_lines(np, numbers_of(parts[0], e, at.shape, "elements"), at)
    scales = numbers_of(parts[1], s, at.scales, "scales").reshape(-1)
    tensor = float(np.asarray(parts[2], np.float64).reshape(())) if len(parts) == 3 else 1.0
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
