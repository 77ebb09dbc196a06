"""`Operand`: one side of a product as a matrix unit reads it, its numbers apart from its scales."""

from typing import NamedTuple

from roundscope.emu.backends.ops import Array, Ops


class Operand(NamedTuple):
    """A matrix of numbers that a product reads.

    numbers  elements times the scales of their blocks, or plain numbers
    units    the scale of each number's block; None where numbers have none
    scale    one more factor of all numbers, which multiplies the product afterwards, as NVFP4's
             scale of the tensor; None for 1
    """

    numbers: Array
    units: Array | None = None
    scale: Array | None = None

    def turned(self, ops: Ops) -> "Operand":
        """Return the transpose."""
        units = None if self.units is None else ops.transposed(self.units)
        return Operand(ops.transposed(self.numbers), units, self.scale)

    def part(self, rows: slice, columns: slice = slice(None)) -> "Operand":
        """Return some rows and columns."""
        units = None if self.units is None else self.units[rows, columns]
        return Operand(self.numbers[rows, columns], units, self.scale)


def operand_of(x: Array | Operand) -> Operand:
    """Return an operand, which may be given as its numbers alone."""
    return x if isinstance(x, Operand) else Operand(x)
