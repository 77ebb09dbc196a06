"""The functions of block formats: rounding to blocks, and arrays of separate elements and scales.

There is one set of functions for NumPy arrays (Numba kernels) and JAX arrays (XLA); both give the
same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roundscope.emu.arrays import ArrayLike, Result
from roundscope.emu.backends.ops import Array as AnyArray
from roundscope.emu.blocks.blocked import Blocked, check_blocked
from roundscope.emu.blocks.format import BlockFormat, block_format
from roundscope.emu.blocks.layout import (
    Layout,
    from_lines,
    layout_of,
    scales_from_lines,
    scales_to_lines,
    to_lines,
)
from roundscope.emu.errors import known_arguments
from roundscope.emu.libraries import (
    check_out,
    float_array,
    is_jax,
    library_of,
    random_integers,
    run_program,
)
from roundscope.emu.tensors import takes_tensors


@takes_tensors
def round_blocks(
    x: ArrayLike,
    format: str | BlockFormat,
    axis: int = -1,
    out: np.ndarray | None = None,
    **changes: Any,
) -> Result:
    """Round every number of an array to a block format.

    The result is tensor * scale * element for each number. The element is number / (tensor *
    scale), rounded once to the element format. scale is that of the number's block, and tensor is
    the scale of the whole array, or 1 in a format without one. In a float32 array the product is
    rounded once more, to binary32, if it is not a binary32 number. This can happen if a scale is
    not a power of two, or if the product is outside binary32's range. The module
    `roundscope.emu.blocks.format` names the sources of the formats and the scale rules.

    Args:
        x: a float32 or float64 array of NumPy or JAX, or tensor of PyTorch, of any shape with one
            axis or more; narrower floats are converted to float32 first. A tensor that requires a
            gradient is refused, as by `round_to`.
        format: a name ("mxfp8_e4m3", "nvfp4" ..., see `BLOCK_NAMED`) or a `BlockFormat`.
        axis: the axis along which the blocks run, the last by default. If the last block is
            shorter, it is treated as if it were padded with zeros.
        out: a NumPy array of x's shape and type that receives the result; it may be x itself. It
            must be None for a JAX array and for a tensor.
        **changes: `mode`, `rule`, `overflow`, `seed` and `tensor_scale`, as `block_format` takes
            them. In the stochastic mode the random bits of a number depend on the seed and on the
            number's flat index in x, as in `round_to`.

    Returns:
        An array of x's library, device and shape: float64 for float64, float32 for everything
        narrower.

    Raises:
        ValueError: for an unknown name, an axis that x lacks, or an `out` of another shape or type.
        TypeError: for an array of whole numbers, or an argument that does not make an array of
            floats.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([1.0, 30.0, 100.0, 3.3], np.float32)  # one block: its scale is 2^4
        >>> emu.round_blocks(x, "mxfp4").tolist()
        [0.0, 32.0, 96.0, 0.0]
        >>> emu.round_blocks(x, "mxfp8_e4m3").tolist()
        [1.0, 30.0, 96.0, 3.25]
    """
    f, numbers = block_format(format, **changes), float_array(x)
    at = layout_of(numbers.shape, f, axis)
    if is_jax(numbers):
        if out is not None:
            raise ValueError("out: JAX arrays are immutable; leave it out")
        return run_program(_round_jax, numbers, f=f, at=at) if numbers.size else numbers
    check_out(out, numbers)
    return _round_numpy(numbers, f, at, out)


def _round_jax(x: AnyArray, *, f: BlockFormat, at: Layout) -> AnyArray:
    xp = library_of(x)
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


def to_blocks(x: ArrayLike, format: str | BlockFormat, axis: int = -1, **changes: Any) -> Blocked:
    """Return an array in a block format, with elements and scales in separate arrays.

    For a float32 array, from_blocks(to_blocks(x, f)) equals round_blocks(x, f). For a float64 array
    it equals round_blocks(x, f) rounded to binary32.

    Args:
        x: an array as `round_blocks` takes it; it must not be empty.
        format: a name or a `BlockFormat`.
        axis: the axis along which the blocks run, the last by default.
        **changes: `mode`, `rule`, `overflow`, `seed` and `tensor_scale`, as `block_format` takes
            them.

    Returns:
        A `Blocked` array whose parts are arrays of x's library.

    Raises:
        ValueError: as `round_blocks` does, and for an empty array.
        TypeError: as `round_blocks` does.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> b = emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4")
        >>> b.elements.tolist(), b.scales.tolist()
        ([0.0, 2.0, 6.0, 0.0], [16.0])
    """
    f, numbers = block_format(format, **changes), float_array(x)
    at = layout_of(numbers.shape, f, axis)
    if not numbers.size:
        raise ValueError(f"x: shape {numbers.shape} has no numbers to scale")
    elements, scales, tensor = (
        run_program(_quantise, numbers, f=f, at=at)
        if is_jax(numbers)
        else _quantise(numbers, f=f, at=at)
    )
    return Blocked(elements=elements, scales=scales, tensor=tensor, format=f, axis=at.axis)


def _quantise(x: AnyArray, *, f: BlockFormat, at: Layout) -> tuple[AnyArray, AnyArray, AnyArray]:
    xp = library_of(x)
    elements, scales, tensor = _executor(x).quantise(
        to_lines(xp, x, at), f, _lines_of_bits(x, f, at)
    )
    return from_lines(xp, elements, at), scales_from_lines(xp, scales, at), tensor


@known_arguments
def from_blocks(b: Blocked) -> Result:
    """Return the numbers that a blocked array represents: tensor * scale * element.

    Args:
        b: a `Blocked` array.

    Returns:
        A float32 array of the shape of b. All numbers of a block whose scale is NaN are NaN.

    Raises:
        TypeError: for anything but a `Blocked` array.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> emu.from_blocks(emu.to_blocks(np.array([1.0, np.inf], np.float32), "mxfp4")).tolist()
        [nan, nan]
    """
    check_blocked(b)
    at, arrays = layout_of(b.shape, b.format, b.axis), (b.elements, b.scales, b.tensor)
    on_jax = is_jax(b.elements)
    return run_program(_numbers, *arrays, at=at) if on_jax else _numbers(*arrays, at=at)


def _numbers(elements: AnyArray, scales: AnyArray, tensor: AnyArray, *, at: Layout) -> AnyArray:
    xp = library_of(elements)
    lines = _executor(elements).dequantise(
        to_lines(xp, elements, at), scales_to_lines(scales, at), tensor
    )
    return from_lines(xp, lines, at)


def _executor(x: AnyArray) -> Any:
    if is_jax(x):
        from roundscope.emu.blocks import xla as block_xla

        return block_xla
    from roundscope.emu.blocks import kernels as block_kernels

    return block_kernels


def _lines_of_bits(x: AnyArray, f: BlockFormat, at: Layout) -> AnyArray | None:
    """Return the stochastic mode's random integers in blocks, or None in other modes.

    A number's integer depends on its flat index in x, not on its place in the blocks.
    """
    random = random_integers(x, f.element, f.element.seed, 0)
    return None if random is None else to_lines(library_of(x), random, at)
