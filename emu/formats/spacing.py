"""The unit in the last place, from the exponent bits: no logarithm is taken."""

from typing import Any

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.format import Format


def biased_exponent(ops: Ops, x: Array, emin: Any) -> Array:
    """Return max(e(x), emin) + 1023 of a float64 array, as integers; e(0) is below every emin."""
    return ops.xp.maximum((ops.bits(x) & 0x7FF0_0000_0000_0000) >> 52, emin + 1023)


def spacing(ops: Ops, x: Array, f: Format) -> Array:
    """Return the distance of neighbors of the format in the binade of x, 2^(max(e, emin) - p + 1).

    x is a float64 array, and so is the result.
    """
    return ops.from_bits((biased_exponent(ops, x, f.emin) - (f.precision - 1)) << 52)
