"""Products of arrays (..., H) with a Hadamard matrix and random signs, and with its transpose.

W is the Hadamard matrix of size H, a power of two, and D a diagonal matrix of random signs. Queries
are multiplied by 2^-a D W and keys by 2^-b D W with a + b = log2 H, so scores do not change.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from roundscope.emu.backends import ops
from roundscope.emu.roundings.random import random31


def halvings(features: int, *, of_keys: bool) -> int:
    """Return a, or b of keys: the factor of so many features is 2^-a."""
    n = features.bit_length() - 1
    return n - n // 2 if of_keys else n // 2


def spread(x: ops.Array, halvings: int, seed: int) -> ops.Array:
    """Return x D W 2^-halvings, by log2 H rounds of sums and differences."""
    x = x if x.dtype.itemsize >= 4 else x.astype("float32")
    return _summed(x * _factors(x, halvings, seed))


def gathered(x: ops.Array, halvings: int, seed: int) -> ops.Array:
    """Return x W D 2^-halvings, the product with the transpose of what `spread` multiplies by."""
    return _summed(x) * _factors(x, halvings, seed)


def _factors(x: ops.Array, halvings: int, seed: int) -> ops.Array:
    """Return the diagonal of D 2^-halvings, in the type of x."""
    signs = _signs(x.shape[-1], seed) * math.ldexp(1.0, -halvings)
    return x.__array_namespace__().asarray(signs, dtype=x.dtype)


def _summed(x: ops.Array) -> ops.Array:
    """Return x W; W is symmetric."""
    xp, h = x.__array_namespace__(), x.shape[-1]
    y, n = x, 1
    while n < h:
        pairs = y.reshape(*x.shape[:-1], -1, 2, n)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y, n = xp.stack([a + b, a - b], axis=-2).reshape(x.shape), 2 * n
    return y


def _signs(count: int, seed: int) -> NDArray[np.floating]:
    """Return a random sign, +1 or -1, for each of `count` features."""
    word = np.uint32
    with np.errstate(over="ignore"):  # NumPy's scalars warn where its arrays wrap
        bits = random31(
            (np.full(1, seed, word), np.zeros(1, word)),
            (np.zeros(count, word), np.arange(count, dtype=word)),
        )
    return (np.asarray(bits) & 1) * 2.0 - 1.0
