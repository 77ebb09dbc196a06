"""The random Hadamard rotation of Q and K, `rotated`.

The rotation does not change the scores in exact arithmetic. If one feature has much larger numbers
than the others, the rotation spreads them over all features, so a cast to a format of few bits
loses less.
"""

from __future__ import annotations

import numpy as np

from roundscope.attention.arguments import check_floats
from roundscope.attention.inputs.hadamard import halvings, spread
from roundscope.emu.arrays import Array, Result
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import check_seed


@known_arguments
def rotated(q: Array, k: Array, *, seed: int = 0) -> tuple[Result, Result]:
    """Return q and k after a random rotation that does not change their products.

    This step is called "incoherent processing"; it precedes a cast to FP8.

    The results are q R and k R', where R = 2^-a D W and R' = 2^-b D W. W is the Hadamard matrix of
    size H, D is a diagonal matrix of random signs, and a + b = log2 H. Since R R'^T = I, the scores
    (q R)(k R')^T equal q k^T in exact arithmetic. The factors 2^-a and 2^-b are powers of two, so
    multiplying by them is exact. They differ where the square root of H is not a whole number: then
    b = a + 1. Each number of a result is computed by log2 H additions, which round in the type of
    the result. Under JAX, gradients are taken with respect to the unrotated q and k.

    Source: arXiv 2407.08608, section 3.3, which multiplies both by 1 / sqrt(H) instead. The code
    released with that paper does not rotate.

    Args:
        q, k: Arrays (..., H), NumPy or JAX, of float32, float64 or a narrower type, which is
            converted to float32. H is a power of two.
        seed: Seed of the random signs in D, from 0 to 2^32 - 1. There is one sign per feature, and
            all heads have the same signs.

    Returns:
        The rotated q and k, in their shapes and types.

    Raises:
        TypeError: q or k is not an array of floating-point numbers, or the seed is not a whole
            number.
        ValueError: q and k differ in H, H is not a power of two, or the seed is out of its range.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import rotated
        >>> q, k = np.eye(4, dtype=np.float32), np.ones((3, 4), np.float32)
        >>> a, b = rotated(q, k, seed=1)
        >>> bool((a @ b.T == q @ k.T).all()), float(abs(a).max())
        (True, 0.5)
    """
    for name, x in (("q", q), ("k", k)):
        check_floats(name, x)
        if not x.shape or 0 in x.shape:
            raise ValueError(f"{name}: shape {tuple(x.shape)}, must be (..., features), none 0")
    check_seed("seed", seed)
    q, k = (np.asarray(x) if isinstance(x, np.ndarray) else x for x in (q, k))
    h, other = (x.shape[-1] if x.shape else 0 for x in (q, k))
    if other != h or h & (h - 1) or not h:
        raise ValueError(
            f"q, k: {h} and {other} features, must be the same power of two; pad both with zeros"
        )
    return spread(q, halvings(h, of_keys=False), seed), spread(k, halvings(h, of_keys=True), seed)
