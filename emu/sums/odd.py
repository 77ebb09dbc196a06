"""A sum of two numbers in binary64, rounded to odd, so that a second rounding is the first.

    s = a + b to nearest
    e = a + b - s exactly (Knuth's TwoSum)
    where e is not 0: s cut toward zero, its last bit 1

A step of an accumulator is one rounding of total + product, as a fused multiply-add is. By way of
binary64 to nearest it would be two, and 1 + (2^-24 + 2^-70) would be a tie, 1 - 2^-60 toward zero
would be 1. A sum rounded to odd still says on which side of every boundary the exact sum lies: one
more rounding to 51 bits or fewer gives what one of the exact sum would give (Boldo and Melquiond
2008). Written once for arrays and for scalars in Numba, like the rule.
"""

from collections.abc import Callable
from typing import Any

from roundscope.emu.backends.ops import Array, Ops

WIDEST = 51  # significand bits of a format for which two bits of binary64 are left


def build_odd_sum(
    where: Callable[..., Any], bits_of: Callable[[Any], Any], number_of: Callable[[Any], Any]
) -> Callable[[Any, Any], Any]:
    """Return the function of (a, b), numbers or arrays in binary64, that adds and rounds to odd.

    Infinities and NaN are those of a + b. The arguments are the elementwise choice, the int64 bits
    of a float64 number, and the number of such bits.
    """

    def odd_sum(a: Any, b: Any) -> Any:
        s = a + b
        rest = s - a
        e = (a - (s - rest)) + (b - rest)
        bits = bits_of(s)
        cut = (bits_of(e) ^ bits) >> 63  # -1 where e points toward zero
        return number_of(where(abs(e) > 0, (bits + cut) | 1, bits))

    return odd_sum


def sum_to_round(ops: Ops, precision: Any, a: Array, b: Array) -> Array:
    """Return a + b for a rounding to so many bits: rounded to odd, and beyond 51 bits to nearest.

    `precision` may be an array, where a format is data.
    """
    if isinstance(precision, int):
        return ops.odd_sum(a, b) if precision <= WIDEST else a + b
    return ops.xp.where(precision <= WIDEST, ops.odd_sum(a, b), a + b)
