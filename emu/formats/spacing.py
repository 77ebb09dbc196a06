"""The unit in the last place, computed from the exponent bits without a logarithm."""

from typing import Any

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.format import Format


def biased_exponent(ops: Ops, x: Array, emin: Any) -> Array:
    """Return max(e, emin) + 1023 as integers, where e is the exponent of each number of x.

    x is a float64 array. The exponent of 0 counts as less than every emin.
    """
    return ops.xp.maximum((ops.bits(x) & 0x7FF0_0000_0000_0000) >> 52, emin + 1023)


def binade(ops: Ops, x: Array, emin: Any) -> Array:
    """Return 2^max(e, emin), where e is the exponent of x, and 0 where x is 0."""
    return ops.xp.where(x == 0.0, 0.0, ops.from_bits(biased_exponent(ops, x, emin) << 52))


def spacing(ops: Ops, x: Array, f: Format) -> Array:
    """Return the distance between neighboring numbers of the format in the binade of x.

    It is 2^(max(e, emin) - p + 1), where e is the exponent of x, p the precision of the format and
    emin its smallest exponent. x is a float64 array, and so is the result. A deep
    format has spacings below binary64's normal numbers: 2^(n - 1023) with n <= 0, whose bits are
    those of the integer 2^(n + 51). They are right under XLA too, which flushes them on a CPU as
    soon as it computes with them.
    """
    n = biased_exponent(ops, x, f.emin) - (f.precision - 1)
    if not f.is_deep:
        return ops.from_bits(n << 52)
    xp = ops.xp
    return ops.from_bits(xp.where(n > 0, n << 52, 1 << xp.clip(n + 51, 0, 51)))
