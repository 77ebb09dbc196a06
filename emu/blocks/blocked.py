"""`Blocked`: an array in a block format, as elements and scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.emu.arrays import Array
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.shown import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """An array in a block format, with elements and scales in separate arrays.

    Each of its numbers is tensor * scale * element, with the scale of the block that the element
    belongs to. `to_blocks` makes a `Blocked` array, `from_blocks` returns its numbers, and `dot`
    multiplies two.

    Attributes:
        elements: a float32 array of the original array's shape. All elements are 0 in a block whose
            scale is NaN.
        scales: a float32 array with one scale for each block. It has the axes of `elements`; its
            length along an axis is the number of blocks along that axis.
        tensor: the scale of the whole array, a float32 number; 1 where the format has none.
        format: the `BlockFormat`.
        axis: the axis along which the blocks run, counted from 0.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> b = emu.to_blocks(np.full((2, 64), 3.0, np.float32), "mxfp8_e4m3")
        >>> b.shape, b.scales.shape, b.T.shape, b.T.axis
        ((2, 64), (2, 2), (64, 2), 0)
    """

    elements: Array
    scales: Array
    tensor: Array | np.float32
    format: BlockFormat
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.elements.shape)

    @property
    def T(self) -> Blocked:
        """The transpose of a matrix: the same numbers, blocked along the other axis.

        Raises ValueError for an array that is not a matrix.
        """
        if len(self.shape) != 2:
            raise ValueError(f"T: of a matrix; this array has shape {self.shape}")
        return replace(self, elements=self.elements.T, scales=self.scales.T, axis=1 - self.axis)


def check_blocked(b: Any) -> None:
    """Raise TypeError unless the argument is a `Blocked` array."""
    if not isinstance(b, Blocked):
        raise TypeError(
            f"b: {shown(b)}, must be a Blocked array; to_blocks(x, 'mxfp8_e4m3') makes one"
        )
