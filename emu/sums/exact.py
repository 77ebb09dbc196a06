"""The exact sum of products, in fixed point, on any array library.

A product of two binary32 numbers is an integer of at most 48 bits times a power of two between 2^-298
and 2^208. The sum is kept in words of 32 bits, word w worth 2^(32 w - BASE), each in an int64 that takes
2^31 additions before it could overflow: no rounding happens before the last step.
"""

from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops

BASE = 320  # the lowest word's exponent: below the smallest product and the smallest binary64 init step used
WORDS = 19  # up to 2^(32 * 19 - 320) = 2^288, above the largest sum of 2^31 products
LOW = 0xFFFF_FFFF


def exact_sum(ops: Ops, a: Array, b: Array, init: Array) -> Array:
    """init + sum over k of a[k, :, None] b[k, None, :] as a binary64 number rounded to odd at 31 bits or more.

    Rounding to odd keeps a sticky bit in the last place, so one more rounding to 29 bits or fewer is the rounding of
    the exact sum (Boldo and Melquiond 2008). a, b, init hold binary32 numbers. a: (K, T), b: (K, N), init: (T, N).
    """
    xp = ops.xp
    words = xp.zeros((WORDS, *init.shape), dtype=np.int64)
    words = _add(ops, words, init)
    words, _ = ops.scan(lambda w, k, x: (_add(ops, w, x[0][:, None] * x[1][None, :]), None), words, (a, b))
    special, _ = ops.scan(lambda s, k, x: (s + x[0][:, None] * x[1][None, :] * 0.0, None), init * 0.0, (a, b))
    return _to_odd(ops, words) + special  # adds 0, or NaN where an operand was infinite or NaN


def _add(ops: Ops, words: Array, x: Array) -> Array:
    """words + x, x a float64 array whose last bit is worth at least 2^-BASE."""
    xp = ops.xp
    bits = ops.bits(x)
    sign = xp.where(bits < 0, -1, 1)
    exponent = (bits >> 52) & 0x7FF
    significand = xp.where(exponent == 0, 0, (bits & (2**52 - 1)) | 2**52)
    # subnormal binary64 cannot occur; shift right what reaches below the last word (zeros, by the bound above)
    place = exponent - 1075 + BASE
    significand = significand >> xp.clip(-place, 0, 63)
    place = xp.clip(place, 0, 32 * (WORDS - 2) - 1)
    first, shift = place >> 5, place & 31
    low = (significand & LOW) << shift
    high = ((significand >> 32) << shift) + (low >> 32)
    index = xp.arange(WORDS).reshape(-1, *([1] * x.ndim))
    for offset, part in enumerate((low & LOW, high & LOW, high >> 32)):
        words = words + xp.where(index == first + offset, sign * part, 0)
    return words


def _to_odd(ops: Ops, words: Array) -> Array:
    """The number that the words stand for, rounded to odd at 31 to 53 bits."""
    xp = ops.xp
    negative = _carried(words, WORDS)[-1] < 0
    limbs = _carried(xp.where(negative, -words, words), WORDS)
    head = xp.zeros_like(limbs[0])  # the leading words, as an integer below 2^62 whose last bit is sticky
    place = xp.zeros(head.shape)
    for w in range(WORDS - 1, -1, -1):
        room = head < 2**30
        shifted = xp.where(room, (head << 32) | limbs[w], head | xp.where(limbs[w] != 0, 1, 0))
        place = xp.where(room, float(w), place)
        head = shifted
    for bits in (8, 4, 2, 1):  # down to 53 bits, ORing what falls off into the last place
        wide = head >= 2 ** (52 + bits)
        head = xp.where(wide, (head >> bits) | xp.where(head & (2**bits - 1), 1, 0), head)
        place = xp.where(wide, place + bits / 32.0, place)
    magnitude = head.astype(np.float64) * _power(ops, place)
    return xp.where(negative, -magnitude, magnitude)


def _carried(words: Array, count: int) -> list[Any]:
    """The words with carries propagated: all but the last in [0, 2^32)."""
    limbs, carry = [], words[0] * 0
    for w in range(count):
        total = words[w] + carry
        limbs.append(total & LOW if w < count - 1 else total)
        carry = total >> 32
    return limbs


def _power(ops: Ops, place: Array) -> Array:
    """2^(32 place - BASE)."""
    exponent = (place * 32.0).astype(np.int64) - BASE
    return ops.from_bits((exponent + 1023) << 52)
