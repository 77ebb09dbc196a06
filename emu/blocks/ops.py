"""Block formats for `Ops`: a matrix rounded in blocks, and the scale of each number."""

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
    """Return a float64 matrix rounded to a block format, and the scale of each of its numbers.

    Both results are float64 arrays of the matrix's shape. The first has the numbers T X P, the
    second T X, where P are the elements, X the scales of blocks and T the scale of the whole
    matrix. T X P is exact, since it has at most 11 + 24 significand bits. A block that is larger
    than the matrix is cut to it. Both results are NaN where the scale is NaN.

    Args:
        xp: the namespace, numpy or jax.numpy.
        quantise: the executor's function that returns elements, scales and T of blocks.
        widen: the executor's function that converts float32 to float64.
        x: the matrix.
        f: the block format.
        axis: the axis along which the blocks run.
        random: the stochastic mode's integers, of x's shape, or None.
    """
    at = layout_of(x.shape, _fitted(f, x.shape, axis), axis)
    p, scales, tensor = quantise(
        to_lines(xp, x, at), f, None if random is None else to_lines(xp, random, at)
    )
    unit = widen(scales) * widen(tensor)
    return from_lines(xp, widen(p) * unit, at), from_lines(xp, xp.broadcast_to(unit, p.shape), at)


def _fitted(f: BlockFormat, shape: tuple[int, ...], axis: int) -> BlockFormat:
    """Return the format with blocks no larger than the matrix.

    This leaves out padding beyond the matrix, whose zeros have no effect on the scale.
    """
    return replace(f, size=min(f.size, shape[axis]), rows=min(f.rows, shape[1 - axis]))
