"""The choice of the scale rule 4OVER6 (arXiv 2512.02010), the same in every array library.

E2M1's numbers end at 4 and 6, with nothing between them, so that a number near 5 / 6 of the block's
largest has the largest error of all. If the block's largest becomes 4 instead of 6, numbers near it
lie closer together, and all others lose a third of their resolution. The rule tries both.

**Choices that the paper leaves open.** Errors T X P - V are rounded to binary32, whose squares are
exact in binary64, and added in binary64 by halves: the first half of the block and the second,
number by number, until one is left. So every library and compiler gives the same bits. Where both
sums are equal, 6 is taken.
"""

from collections.abc import Callable
from typing import Any

Array = Any
LARGEST = (6.0, 4.0)  # what the largest magnitude of a block becomes, the first where both serve


def chooses_four(
    xp: Any, narrow: Callable[[Array], Array], v: Array, six: Array, four: Array
) -> Array:
    """Return which blocks have the smaller sum of squared errors with 4, shape (n, 1).

    Args:
        xp: NumPy or jax.numpy.
        narrow: Rounds binary64 numbers to binary32, in binary64.
        v: Blocks of numbers, (n, k).
        six: The blocks rounded with 6, in binary64.
        four: The blocks rounded with 4, in binary64.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([6.0, 5.0] + [0.0] * 14, np.float32)  # 5 is as far from 4 as from 6
        >>> emu.to_blocks(x, "nvfp4", rule="4over6").elements[:2].tolist()
        [4.0, 3.0]
    """
    sums = []
    for product in (six, four):
        e = narrow(product - v)
        s = e * e
        while (k := s.shape[1]) > 1:
            half = (k + 1) // 2
            rest = s[:, half:]
            s = xp.concatenate([s[:, : k - half] + rest, s[:, k - half : half]], axis=1)
        sums.append(s)
    chosen: Array = sums[1] < sums[0]
    return chosen
