"""Block formats for `Ops`: an array of the carrier rounded in blocks, and the scale that each of
its numbers has.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines

Array = Any
Quantise = Callable[[Array, BlockFormat, Array | None], tuple[Array, Array, Array]]


def round_blocks(
    xp: Any,
    quantise: Quantise,
    widen: Callable[[Array], Array],
    x: Array,
    f: BlockFormat,
    axis: int,
    random: Array | None,
) -> tuple[Array, Array]:
    """(T X P, T X), both float64 of x's shape; x: a float64 matrix; random: the stochastic mode's
    integers, or None.

    T X P is exact: at most 11 + 24 significand bits. A block larger than the matrix ends with it.
    Where the scale is NaN, so are both.
    """
    at = layout_of(x.shape, _fitted(f, x.shape, axis), axis)
    p, scales, tensor = quantise(
        to_lines(xp, x, at), f, None if random is None else to_lines(xp, random, at)
    )
    unit = widen(scales) * widen(tensor)
    return from_lines(xp, widen(p) * unit, at), from_lines(xp, xp.broadcast_to(unit, p.shape), at)


def _fitted(f: BlockFormat, shape: tuple[int, ...], axis: int) -> BlockFormat:
    """The format with blocks inside the matrix: the padding beyond it is zeros and has no say."""
    return replace(f, size=min(f.size, shape[axis]), rows=min(f.rows, shape[1 - axis]))
