"""The random Hadamard rotation of Q and K: `rotated`.

It leaves the scores as they are and spreads large features over all.
"""

import math
from typing import Any

import numpy as np

from roundscope.attention.arguments import check_floats
from roundscope.emu.numbers import check_seed
from roundscope.emu.rounding.threefry import random31

Array = Any  # numpy.ndarray or jax.Array


def rotated(q: Array, k: Array, *, seed: int = 0) -> tuple[Array, Array]:
    """(q R, k R') with R R'^T = I, so that (q R)(k R')^T = q k^T in exact arithmetic: "incoherent
    processing" before a cast to FP8.

    q, k  (..., H), H a power of two; NumPy or JAX, float32 or float64 (narrower ones become
          float32); the results have their types
    seed  of the random signs D, one for each feature, shared by all heads

    R = D W 2^-a, R' = D W 2^-b with the Hadamard matrix W and a + b = log2 H: where H is no square,
    q and k share the factor unevenly, so that it is a power of two and exact. The log2 H additions
    of a number round in its type. The gradients under JAX are those of the unrotated q and k.
    Raises TypeError or ValueError for other arrays, other H and other seeds.

    Source: arXiv 2407.08608, 3.3 (there with 1 / sqrt(H) on both; not in the released code).
    """
    for name, x in (("q", q), ("k", k)):
        check_floats(name, x)
    check_seed("seed", seed)
    h, other = (x.shape[-1] if x.shape else 0 for x in (q, k))
    if other != h or h & (h - 1) or not h:
        raise ValueError(
            f"q, k: {h} and {other} features, must be the same power of two; pad both with zeros"
        )
    n = h.bit_length() - 1
    return _spread(q, n // 2, seed), _spread(k, n - n // 2, seed)


def _spread(x: Array, halvings: int, seed: int) -> Array:
    """x D W 2^-halvings, by log2 H rounds of sums and differences."""
    x = x if x.dtype.itemsize >= 4 else x.astype("float32")
    xp, h = x.__array_namespace__(), x.shape[-1]
    y, n = x * xp.asarray(_signs(h, seed) * math.ldexp(1.0, -halvings), dtype=x.dtype), 1
    while n < h:
        pairs = y.reshape(*x.shape[:-1], -1, 2, n)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y, n = xp.stack([a + b, a - b], axis=-2).reshape(x.shape), 2 * n
    return y


def _signs(count: int, seed: int) -> np.ndarray:
    """+1 or -1 for each feature."""
    word = np.uint32
    with np.errstate(over="ignore"):  # NumPy's scalars warn where its arrays wrap
        bits = random31(
            (np.full(1, seed, word), np.zeros(1, word)),
            (np.zeros(count, word), np.arange(count, dtype=word)),
        )
    return (np.asarray(bits) & 1) * 2.0 - 1.0
