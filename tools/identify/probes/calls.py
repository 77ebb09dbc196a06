"""The calls of a kernel that probes make: their shapes, their numbers, and where a probe stands.

Every feature, head and batch entry, or every query, carries a probe of its own. Calls have the
shape of the call that is examined, since kernels choose tiles by shape, cut to a power of two of at
most `TOKENS` queries and keys, so that 1 / S is exact. They have no mask, and their scale is a
power of 4 near the call's, since some kernels multiply q and k by its root. So a kernel that takes
no scale loses the probes of Q K^T, dK and dQ at most widths.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.user import Kernel
from roundscope.tools.identify.orders import Probe, Unprobed

TOKENS = 512  # queries and keys of a probe, at most
CALLS = 512  # calls of the kernel for one sum, at most
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers of probes in one range of formats.

    large, most  as `orders.tree_of` has them
    unit         the number of a one
    low          the score, below the maximum, at which P is 0
    value        v of the key with that score
    """

    large: float
    unit: float
    most: int
    low: float
    value: float


WIDE = Range(large=2.0**90, unit=1.0, most=255, low=-110.0, value=2.0**110)
"""For BF16 and FP32. A result of 8 bits counts up to 255, and exp(-110) is 0 in binary32."""
NARROW = Range(large=2.0**29, unit=2.0**-14, most=15, low=-20.0, value=2.0**15)
"""For FP16, whose smallest number is 2^-24: M is 2^15, and exp(-20) is 0 as a P."""


class Calls:
    """A kernel whose calls are counted, with a plain call of zeros and the layout of probes in it.

    Where query heads share a key head, the first of them is used.

    x      the plain call
    share  the query heads of a key head
    cells  the numbers of one token of v, k or their gradients, each of which carries a probe
    """

    def __init__(self, kernel: Kernel, x: Inputs, tell: Told) -> None:
        self.kernel, self.x, self.tell, self.done = kernel, x, tell, 0
        self.share = x.q.shape[2] // x.k.shape[2]

    def __call__(self, x: Inputs) -> Outputs:
        """Return the kernel's outputs; raise Unprobed after too many calls."""
        if self.done == CALLS:
            raise Unprobed(f"it needs more than {CALLS} calls of the kernel")
        self.done += 1
        self.tell(f"call {self.done}")
        return self.kernel(x)

    def columns(self, terms: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Return terms (r, n) along the tokens of an array (B, n, N, H), a column for each."""
        b, n, heads, h = like.shape
        share = heads // self.x.k.shape[2]
        cells = np.zeros((b * (heads // share) * h, n), np.float32)
        cells[: len(terms)] = terms
        array = np.zeros(like.shape, np.float32)
        array[:, :, ::share] = cells.reshape(b, -1, h, n).transpose(0, 3, 1, 2)
        return array

    def read(self, result: np.ndarray | None, token: int) -> np.ndarray:
        """Return one token's numbers of a result (B, n, N, H), in the order of `columns`."""
        if result is None:
            raise Unprobed("the kernel returns no gradients")
        share = result.shape[2] // self.x.k.shape[2]
        return np.asarray(result[:, token, ::share], np.float64).reshape(-1)


def plain(x: Inputs) -> Inputs:
    """Return the plain call for a call: zeros, no mask, and a power of 4 as the scale."""

    def cut(a: np.ndarray) -> np.ndarray:
        tokens = 1 << min(a.shape[1], TOKENS).bit_length() - 1
        return np.zeros((a.shape[0], tokens, *a.shape[2:]), np.float32)

    scale = float(4.0 ** round(np.log2(abs(x.scale) or 1.0) / 2))
    return Inputs(q=cut(x.q), k=cut(x.k), v=cut(x.v), do=cut(x.do), scale=scale, is_causal=False)


def in_calls(ask: Probe, capacity: int) -> Probe:
    """Return a probe of any number of rows, from one of at most `capacity` rows."""

    def every(rows: np.ndarray) -> np.ndarray:
        parts = [rows[lo : lo + capacity] for lo in range(0, len(rows), capacity)]
        return np.concatenate([ask(part)[: len(part)] for part in parts])

    return every
