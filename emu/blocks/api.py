"""The functions of block formats: one set for NumPy arrays (Numba kernels) and JAX arrays (XLA),
the same bits from both.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.emu.api import _carrier, _check_out, _is_jax, _library, _program, _random
from roundscope.emu.blocks.format import BlockFormat, block_format
from roundscope.emu.blocks.layout import (
    Layout,
    from_lines,
    layout_of,
    scales_from_lines,
    scales_to_lines,
    to_lines,
)

Array = Any  # numpy.ndarray or jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """An array in a block format: it stands for the numbers T X P.

    elements  P, float32, of the array's shape; 0 in a block whose scale is NaN
    scales    X, float32: the array's shape with one number for each block
    tensor    T, a float32 number; 1 where the format has no scale of the whole array
    axis      the blocked axis, counted from 0
    """

    elements: Array
    scales: Array
    tensor: Array
    format: BlockFormat
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""
        return tuple(self.elements.shape)

    @property
    def T(self) -> "Blocked":
        """The transpose of a matrix: the same numbers, blocked along the other axis.

        Raises ValueError for no matrix.
        """
        if len(self.shape) != 2:
            raise ValueError(f"T: of a matrix; this array has shape {self.shape}")
        return replace(self, elements=self.elements.T, scales=self.scales.T, axis=1 - self.axis)


def check_blocked(b: Any) -> None:
    """Raises TypeError for what is no blocked array."""
    if not isinstance(b, Blocked):
        raise TypeError(
            f"b: a {type(b).__name__}, must be a Blocked array; to_blocks(x, 'mxfp8_e4m3')"
            " makes one"
        )


def round_blocks(
    x: Any, format: str | BlockFormat, axis: int = -1, out: np.ndarray | None = None, **changes: Any
) -> Array:
    """Every number of x replaced by what a block format keeps of it, T X P; the result has x's type
    and shape.

    x        float32 or float64 array, NumPy or JAX, any shape; narrower floats enter as float32
    format   a name ("mxfp8_e4m3", "nvfp4" ...) or a `BlockFormat`
    axis     along which the blocks run; a last, shorter block stands for one padded with zeros
    out      NumPy only: where the result goes, x itself allowed
    changes  mode, rule, overflow, seed, as of `block_format`

    Exact: each element is V / (T X) rounded once, and T X P rounds once more, to binary32, only in
    float32 arrays and only where it is no binary32 number (scales other than powers of two, or
    beyond binary32's range). The stochastic mode draws by a number's index in x, as `round_to`
    does. Raises ValueError for unknown names, an axis that x lacks, an out of another shape or
    type.
    """
    f, x = block_format(format, **changes), _carrier(x)
    at = layout_of(x.shape, f, axis)
    if _is_jax(x):
        if out is not None:
            raise ValueError("out: JAX arrays are immutable; leave it out")
        return _program(_round_jax, x, f=f, at=at) if x.size else x
    _check_out(out, x)
    return _round_numpy(x, f, at, out)


def _round_jax(x: Array, *, f: BlockFormat, at: Layout) -> Array:
    xp = _library(x)
    return from_lines(
        xp, _executor(x).round_blocks(to_lines(xp, x, at), f, _lines_of_bits(x, f, at)), at
    )


def _round_numpy(x: np.ndarray, f: BlockFormat, at: Layout, out: np.ndarray | None) -> np.ndarray:
    from roundscope.emu.blocks import kernels as block_kernels

    if not x.size:
        return x.copy() if out is None else out
    direct = at.plain and out is not None and out.flags.c_contiguous
    lines = out.reshape(-1, at.size) if direct and out is not None else None
    with np.errstate(over="ignore"):
        y = from_lines(
            np,
            block_kernels.round_blocks(to_lines(np, x, at), f, _lines_of_bits(x, f, at), lines),
            at,
        )
    if out is None:
        return np.ascontiguousarray(y)
    if not direct:
        out[...] = y
    return out


def to_blocks(x: Any, format: str | BlockFormat, axis: int = -1, **changes: Any) -> Blocked:
    """x in a block format, elements and scales apart.

    Of a float32 array, from_blocks(to_blocks(x, f)) is round_blocks(x, f); of a float64 array it is
    that rounded to binary32.

    Arguments and errors as of `round_blocks`; also ValueError for an array without numbers.
    """
    f, x = block_format(format, **changes), _carrier(x)
    at = layout_of(x.shape, f, axis)
    if not x.size:
        raise ValueError(f"x: shape {x.shape} has no numbers to scale")
    elements, scales, tensor = (
        _program(_quantise, x, f=f, at=at) if _is_jax(x) else _quantise(x, f=f, at=at)
    )
    return Blocked(elements=elements, scales=scales, tensor=tensor, format=f, axis=at.axis)


def _quantise(x: Array, *, f: BlockFormat, at: Layout) -> tuple[Array, Array, Array]:
    xp = _library(x)
    elements, scales, tensor = _executor(x).quantise(
        to_lines(xp, x, at), f, _lines_of_bits(x, f, at)
    )
    return from_lines(xp, elements, at), scales_from_lines(xp, scales, at), tensor


def from_blocks(b: Blocked) -> Array:
    """The numbers T X P that a blocked array stands for, float32; NaN throughout a block whose
    scale is NaN.

    Raises TypeError for what is no blocked array.
    """
    check_blocked(b)
    at, arrays = layout_of(b.shape, b.format, b.axis), (b.elements, b.scales, b.tensor)
    return _program(_numbers, *arrays, at=at) if _is_jax(b.elements) else _numbers(*arrays, at=at)


def _numbers(elements: Array, scales: Array, tensor: Array, *, at: Layout) -> Array:
    xp = _library(elements)
    lines = _executor(elements).dequantise(
        to_lines(xp, elements, at), scales_to_lines(scales, at), tensor
    )
    return from_lines(xp, lines, at)


def _executor(x: Array) -> Any:
    if _is_jax(x):
        from roundscope.emu.blocks import xla as block_xla

        return block_xla
    from roundscope.emu.blocks import kernels as block_kernels

    return block_kernels


def _lines_of_bits(x: Array, f: BlockFormat, at: Layout) -> Array | None:
    """The stochastic mode's integers in blocks: each number keeps the one of its index in x."""
    random = _random(x, f.element, f.element.seed, 0)
    return None if random is None else to_lines(_library(x), random, at)
