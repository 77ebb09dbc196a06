"""The position of blocks in an array, and conversion between an array and a matrix of its blocks.

In the matrix every row is one block, so its shape is (number of blocks, numbers in a block). Scales
keep the array's order of axes. `round_blocks` is what `Ops` has of block formats: a matrix rounded
in blocks, and the scale of each number.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.numbers import check_whole
from roundscope.emu.roundings.modes import BINARY32, rounding
from roundscope.emu.shown import shown

Array = Any


class Layout(NamedTuple):
    """The position of blocks in an array.

    A block has `size` numbers along the blocked axis and `rows` numbers along a second axis. That
    is the axis after the blocked one or, if the blocked axis is the last, the axis before it.
    """

    shape: tuple[int, ...]  # of the array
    axis: int  # the blocked axis, counted from 0
    line: int  # the second axis, that of `rows`; -1 for a vector
    size: int
    rows: int

    @property
    def moved(self) -> tuple[int, ...]:
        """The axes in an order that puts the axis of `rows` and the blocked axis last."""
        rest = [n for n in range(len(self.shape)) if n not in (self.axis, self.line)]
        return (*rest, *([self.line] if self.line >= 0 else []), self.axis)

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of blocks along the axis of `rows` and along the blocked axis."""
        lines = self.shape[self.line] if self.line >= 0 else 1
        return -(-lines // self.rows), -(-self.shape[self.axis] // self.size)

    @property
    def scales(self) -> tuple[int, ...]:
        """The shape of the array of scales: along every axis, the number of blocks along it."""
        lines, blocks = self.tiles
        counts = {self.axis: blocks, self.line: lines}
        return tuple(counts.get(n, d) for n, d in enumerate(self.shape))

    @property
    def plain(self) -> bool:
        """Whether the blocks follow each other in the flat array, so that a reshape splits them."""
        return (
            self.rows == 1 and self.axis == len(self.shape) - 1 and self.shape[-1] % self.size == 0
        )


def layout_of(shape: tuple[int, ...], f: BlockFormat, axis: int) -> Layout:
    """Return the layout of an array's blocks.

    Raises ValueError for an axis that the array lacks, or for a tile in a vector.
    """
    dimensions, axis = len(shape), axis_of(shape, axis)
    if f.rows > 1 and dimensions < 2:
        raise ValueError(
            f"rows={f.rows}: a tile needs an array of two axes or more, this one has shape {shape}"
        )
    line = -1 if dimensions < 2 else axis + 1 if axis + 1 < dimensions else axis - 1
    return Layout(tuple(shape), axis, line, f.size, f.rows)


def axis_of(shape: tuple[int, ...], axis: int) -> int:
    """Return the axis, counted from 0.

    Raises TypeError if the axis is not a whole number, and ValueError if an array of this shape
    lacks it.
    """
    check_whole("axis", axis, "axes count from 0, or from -1 backwards")
    dimensions = len(shape)
    if not dimensions:
        raise ValueError("x: a single number has no axis; give an array of one axis or more")
    if not -dimensions <= axis < dimensions:
        repair = f"give -{dimensions} to {dimensions - 1}"
        raise ValueError(f"axis={shown(axis)}: the array has {dimensions} axes; {repair}")
    return axis % dimensions


def to_lines(xp: Any, x: Array, at: Layout) -> Array:
    """Return the blocks of x as rows, shape (blocks, rows * size), padded with zeros."""
    if at.plain:
        return x.reshape(-1, at.size)
    lines, blocks = at.tiles
    x = x.transpose(at.moved)
    x = x if at.line >= 0 else x[None]
    short = [(0, 0)] * (x.ndim - 2) + [
        (0, lines * at.rows - x.shape[-2]),
        (0, blocks * at.size - x.shape[-1]),
    ]
    x = xp.pad(x, short) if any(after for _, after in short) else x
    x = x.reshape(*x.shape[:-2], lines, at.rows, blocks, at.size)
    return xp.moveaxis(x, -3, -2).reshape(-1, at.rows * at.size)


def from_lines(xp: Any, y: Array, at: Layout) -> Array:
    """Return the array whose blocks are the rows of y, without the padding."""
    if at.plain:
        return y.reshape(at.shape)
    lines, blocks = at.tiles
    moved = [at.shape[n] for n in at.moved] if at.line >= 0 else [1, *at.shape]
    y = xp.moveaxis(y.reshape(*moved[:-2], lines, blocks, at.rows, at.size), -3, -2)
    y = y.reshape(*moved[:-2], lines * at.rows, blocks * at.size)[..., : moved[-2], : moved[-1]]
    return y.transpose(_back(at)) if at.line >= 0 else y.reshape(at.shape)


def scales_from_lines(xp: Any, scales: Array, at: Layout) -> Array:
    """Return the scales in the array's order of axes, with the shape `at.scales`."""
    moved = [at.scales[n] for n in at.moved]
    return scales.reshape(moved).transpose(_back(at))


def scales_to_lines(scales: Array, at: Layout) -> Array:
    """Return the scales of an array as a column, shape (blocks, 1)."""
    return scales.transpose(at.moved).reshape(-1, 1)


def _back(at: Layout) -> tuple[int, ...]:
    """Return the permutation of axes that undoes `moved`."""
    return tuple(at.moved.index(n) for n in range(len(at.shape)))


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

    quantise  the executor's function that returns elements, scales and T of blocks
    widen     the executor's function that converts float32 to float64
    random    the stochastic mode's integers, of x's shape, or None
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


def tensor_scale(ops: Any, x: Array, f: BlockFormat) -> Array:
    """Return the scale of a whole matrix of binary32 numbers, (1, 1), that `round_blocks` uses.

    It is 1 where the format has none.

    Args:
        ops: The array library.
        x: The matrix.
        f: The block format.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> from roundscope.emu.backends.numba.ops import numpy_ops
        >>> tensor_scale(numpy_ops(), np.full((2, 16), 5376.0), emu.block_format("nvfp4")).item()
        2.0
    """
    xp, given = ops.xp, 1.0 if not f.tensor else f.tensor_scale
    if given is not None:
        return xp.full((1, 1), given)
    top = xp.max(xp.where(xp.isfinite(x), xp.abs(x), 0.0)).reshape(1, 1)
    quotient = ops.divide(top, xp.full((1, 1), f.tensor_top))
    scale = ops.round(quotient, rounding(BINARY32, overflow="saturate"), None)
    return xp.where(top == 0.0, 1.0, xp.maximum(scale, 2.0**-149))
