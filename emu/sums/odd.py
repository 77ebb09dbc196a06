"""A sum of two numbers in binary64, rounded to odd, so that it can be rounded again without error.

The sum of a and b is computed as follows::

    s = a + b, rounded to nearest
    e = a + b - s, which is exact (Knuth's TwoSum)
    if e is not 0: cut the exact sum toward zero to 53 bits and set its last bit to 1

A step of an accumulator rounds total + product once, as a fused multiply-add does. Rounding to
nearest in binary64 first would make two roundings: 1 + (2^-24 + 2^-70) would become a tie, and 1 -
2^-60 toward zero would become 1. A sum that is rounded to odd lies on the same side of every
rounding boundary as the exact sum. So one more rounding to 51 bits or fewer gives the rounding of
the exact sum (Boldo and Melquiond 2008). The code is written once for arrays and for scalars in
Numba, like the rule.
"""

from collections.abc import Callable
from typing import Any

from roundscope.emu.backends.ops import Array, Ops

WIDEST = 51  # the largest precision of a format that leaves two spare bits in binary64


def build_odd_sum(
    where: Callable[..., Any], bits_of: Callable[[Any], Any], number_of: Callable[[Any], Any]
) -> Callable[[Any, Any], Any]:
    """Return a function of (a, b), numbers or arrays in binary64, that adds and rounds to odd.

    If a + b is infinite or NaN, so is the result.

    Args:
        where: the elementwise choice.
        bits_of: the function from a float64 number to its int64 bits.
        number_of: the function from int64 bits to the float64 number.
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
    """Return a + b in a form that is then rounded to `precision` bits.

    The sum is rounded to odd or, for more than 51 bits, to nearest. `precision` may be an array, if
    a format is data.
    """
    if isinstance(precision, int):
        return ops.odd_sum(a, b) if precision <= WIDEST else a + b
    return ops.xp.where(precision <= WIDEST, ops.odd_sum(a, b), a + b)
