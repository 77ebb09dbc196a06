"""Sums rounded to odd, which can be rounded again without error: of two numbers, and of many.

**Two numbers** in binary64, a and b, are added as follows::

    s = a + b, rounded to nearest
    e = a + b - s, which is exact (Knuth's TwoSum)
    if e is not 0: cut the exact sum toward zero to 53 bits and set its last bit to 1

A step of an accumulator rounds total + product once, as a fused multiply-add does. Rounding to
nearest in binary64 first would make two roundings: 1 + (2^-24 + 2^-70) would become a tie, and 1 -
2^-60 toward zero would become 1. A sum that is rounded to odd lies on the same side of every
rounding boundary as the exact sum. So one more rounding to 51 bits or fewer gives the rounding of
the exact sum (Boldo and Melquiond 2008). The code is written once for arrays and for scalars in
Numba, like the rule.

**Many products** are added in fixed point, on any array library. Their sum is kept in words of 32
bits; one unit of word w is worth 2^(32 w - base). Each word is in an int64, which cannot overflow
in fewer than 2^31 additions, so nothing is rounded before the last step. Products of two binary32
numbers are multiples of 2^-298 below 2^256 and need 19 words; binary64 numbers need 68.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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


class Words(NamedTuple):
    """The number of words of a sum, and what they are worth."""

    base: int  # one unit of the lowest word is worth 2^-base
    size: int  # the number of words


OF_BINARY32 = Words(320, 19)  # to 2^288, above the largest sum of 2^31 products of binary32 numbers
OF_BINARY64 = Words(1088, 68)  # to 2^1088, above the largest sum of 2^31 binary64 numbers
LOW = 0xFFFF_FFFF
LARGEST = 0x7FEF_FFFF_FFFF_FFFF  # bits of binary64's largest number


def exact_sum(ops: Ops, a: Array, b: Array, init: Array, at: Words = OF_BINARY64) -> Array:
    """Return init + sum over k of a[k, :, None] b[k, None, :], rounded to odd at 31 bits or more.

    The result is a binary64 number. Rounding to odd keeps a sticky bit in the last place, so one
    more rounding to 29 bits or fewer gives the rounding of the exact sum (Boldo and Melquiond
    2008). A sum of zeros is +0, and a sum beyond binary64 is binary64's largest number. Infinities
    of one sign give that infinity, and infinities of both signs give NaN. Products are binary64
    numbers. They are exact for factors of up to 26 bits if they are inside binary64's range (under
    XLA on a CPU, inside its normal range).

    Args:
        ops: the array library.
        a: factors of shape (K, T).
        b: factors of shape (K, N).
        init: the numbers that the sums begin with, of shape (T, N).
        at: OF_BINARY32 if a, b and init hold binary32 numbers, which takes a third of the work.
    """
    xp = ops.xp

    def add(sums: tuple[Array, Array], x: Array) -> tuple[Array, Array]:
        words, special = sums
        return _add(ops, at, words, x), special + xp.where(xp.isfinite(x), 0.0, x)

    def body(sums: Any, k: Any, x: tuple[Array, Array]) -> tuple[Any, None]:
        return add(sums, x[0][:, None] * x[1][None, :]), None

    nothing = xp.zeros((at.size, *init.shape), dtype=np.int64), xp.zeros(init.shape)
    (words, special), _ = ops.scan(body, add(nothing, init), (a, b))
    return xp.where(special == 0.0, _to_odd(ops, at, words), special)


def _add(ops: Ops, at: Words, words: Array, x: Array) -> Array:
    """Return words + x, where all numbers of the float64 array x are multiples of 2^-base."""
    xp = ops.xp
    bits = ops.bits(x)
    sign = xp.where(bits < 0, -1, 1)
    exponent = (bits >> 52) & 0x7FF
    significand = (bits & (2**52 - 1)) | xp.where(exponent == 0, 0, 2**52)
    place = xp.maximum(exponent, 1) - 1075 + at.base
    significand = significand >> xp.clip(-place, 0, 63)  # drops only zeros: x is a multiple
    place = xp.clip(place, 0, 32 * (at.size - 2) - 1)  # any place will do for infinity and NaN
    first, shift = place >> 5, place & 31
    low = (significand & LOW) << shift
    high = ((significand >> 32) << shift) + (low >> 32)
    index = xp.arange(at.size).reshape(-1, *([1] * x.ndim))
    for offset, part in enumerate((low & LOW, high & LOW, high >> 32)):
        words = words + xp.where(index == first + offset, sign * part, 0)
    return words


def _to_odd(ops: Ops, at: Words, words: Array) -> Array:
    """Return the number of the words, rounded to odd at 31 to 53 bits or at a bit below 2^-1056."""
    xp = ops.xp
    negative = _carried(words, at.size)[-1] < 0
    limbs = _carried(xp.where(negative, -words, words), at.size)
    # the leading words as an integer below 2^62 whose last bit is sticky, and that bit's exponent
    head = xp.zeros_like(limbs[0])
    exponent = xp.zeros_like(head)
    for w in range(at.size - 1, -1, -1):
        room = head < 2**30
        shifted = xp.where(room, (head << 32) | limbs[w], head | xp.where(limbs[w] != 0, 1, 0))
        exponent = xp.where(room, 32 * w - at.base, exponent)
        head = shifted
    for bits in (8, 4, 2, 1):  # down to 53 bits; dropped bits are ORed into the last place
        wide = head >= 2 ** (52 + bits)
        head = xp.where(wide, (head >> bits) | xp.where(head & (2**bits - 1), 1, 0), head)
        exponent = xp.where(wide, exponent + bits, exponent)
    magnitude = _scaled(ops, head, exponent)
    return xp.where(negative, -magnitude, magnitude)


def _scaled(ops: Ops, n: Array, exponent: Array) -> Array:
    """Return n 2^exponent for 0 <= n < 2^53, or binary64's largest number if that is smaller.

    It is computed with integers, so that subnormal results are right too.
    """
    xp = ops.xp
    b = ops.bits(n.astype(np.float64)) + (exponent << 52)
    significand = (b & (2**52 - 1)) | 2**52
    subnormal = significand >> xp.clip(1 - (b >> 52), 0, 63)  # exact: a multiple of 2^-1074
    bits = xp.where(b < 2**52, subnormal, xp.minimum(b, LARGEST))
    return ops.from_bits(xp.where(n == 0, 0, bits))


def _carried(words: Array, count: int) -> list[Any]:
    """Return the words with carries propagated: all but the last are in [0, 2^32)."""
    limbs, carry = [], words[0] * 0
    for w in range(count):
        total = words[w] + carry
        limbs.append(total & LOW if w < count - 1 else total)
        carry = total >> 32
    return limbs
