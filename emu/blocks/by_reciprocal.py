"""Blocks whose quotients are products with a reciprocal in binary32, as Triton's compiler has them.

`div.full.f32` of two numbers is compiled to the instruction rcp.approx and a product [PTX ISA,
div.full; the compiled code of triton 3.6.0 for sm_90]; both numbers are first moved by a power of
two where the divisor is very small or large. A division by a constant becomes a product with its
reciprocal, rounded to binary32. So a quotient is within 2 ulps of binary32, and then rounds to its
element.
"""

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import round_blocks
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.instructions.approximate import LEAST, rcp
from roundscope.emu.roundings.modes import BINARY32

UP, DOWN = 2.0**24, 0.25  # times scales below 2^-126 or above 2^126, and what they divide


def divides_in_binary32(f: BlockFormat) -> bool:
    """Return whether a format has scales in binary32 that are quotients to nearest."""
    is_quotient = f.rule is ScaleRule.NEAREST and not f.tensor
    return is_quotient and f.scale == BINARY32.format


def round_blocks_by_reciprocal(
    ops: Ops, x: Array, f: BlockFormat, axis: int, random: Array | None
) -> tuple[Array, Array]:
    """Return a float64 matrix of binary32 numbers rounded to a block format, and all scales.

    The results are those of `layout.round_blocks`, but for the quotients: a scale is a / m as a
    times binary32(1 / m), where a is the largest magnitude of the block and m the largest element,
    rounded to binary32; and the quotient of a number and its scale is the number times rcp.approx
    of the scale, rounded to binary32 before its element.

    Args:
        ops: The array library.
        x: The matrix.
        f: A block format that `divides_in_binary32`.
        axis: The axis along which the blocks run.
        random: The integers of the stochastic mode, of the shape of x, or None.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> from roundscope.emu.backends.numba.ops import numpy_ops
        >>> f = emu.block_format("fp8_1x128")
        >>> x = np.array([[448.0, 7.5, 0.0]])
        >>> round_blocks_by_reciprocal(numpy_ops(), x, f, 1, None)[0].tolist()
        [[448.0, 7.5, 0.0]]
    """
    xp, m = ops.xp, f.element.format.max_finite

    def quantise(v: Array, f: BlockFormat, random: Array | None) -> tuple[Array, Array, Array]:
        """Return elements, scales and 1 of blocks (n, k)."""
        top = xp.max(xp.abs(v), axis=1, keepdims=True)
        good = xp.isfinite(top)
        product = ops.multiply(xp.where(good, top, 1.0), float(np.float32(1.0 / m)))
        scale = xp.maximum(ops.round(product, BINARY32, None), f.scale.min_positive)
        moved = xp.where(scale < LEAST, UP, xp.where(scale > 1.0 / LEAST, DOWN, 1.0))
        inverse = ops.call(rcp, ops.multiply(scale, moved))
        numbers = ops.multiply(xp.where(good, v, 0.0), moved)
        quotient = ops.round(ops.multiply(numbers, inverse), BINARY32, None)
        p = ops.round(quotient, f.element, random)
        return p, xp.where(good, scale, xp.nan), xp.ones(())

    return round_blocks(xp, quantise, lambda y: y, x, f, axis, random)
