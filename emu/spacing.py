"""The unit in the last place, from the exponent bits: no logarithm is taken."""

from emu.formats import Format
from emu.ops import Array, Ops


def spacing(ops: Ops, x: Array, f: Format) -> Array:
    """Distance of neighbours of the format in the binade of x (float64): 2^(max(e, emin) - p + 1)."""
    e = ops.xp.maximum((ops.bits(x) & 0x7FF0_0000_0000_0000) >> 52, f.emin + 1023)
    return ops.from_bits((e - (f.precision - 1)) << 52)
