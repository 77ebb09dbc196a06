"""The distance of two numbers, counted in numbers of a format.

The magnitudes of a format are ranked from zero upward, as their codes are, and infinity has the
rank after that of the largest finite number. The distance of two numbers is the difference of their
ranks, with the sign, so it is also right where the spacing changes, at powers of two, and across
zero.
"""

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, without_saturation

APART = 2**64 - 1  # the distance of a NaN from a number, and of what has no rank


def is_number(x: np.ndarray, f: Format) -> np.ndarray:
    """Return which float64 numbers the format has; NaN and infinities count as such."""
    r = without_saturation(Rounding(format=f))
    held: np.ndarray = (round_to(x, r) == x) | ~np.isfinite(x) | (x == 0)
    return held


def distance(x: np.ndarray, y: np.ndarray, f: Format) -> np.ndarray:
    """Return how many numbers of the format lie between two float64 arrays, counting one end.

    Args:
        x: an array of numbers of the format; see `is_number`.
        y: another array of x's shape.
        f: the format.

    Returns:
        A uint64 array: 0 for equal numbers, for +0 and -0 and for two NaN, and `APART` where one of
        the two is NaN or is not a number of the format.
    """
    a, b = _ranks(x, f), _ranks(y, f)
    same_sign = np.signbit(x) == np.signbit(y)
    steps = np.where(same_sign, np.maximum(a, b) - np.minimum(a, b), a + b)
    steps = np.where(np.isnan(x) & np.isnan(y), np.uint64(0), steps)
    apart = np.isnan(x) != np.isnan(y)
    apart |= ~is_number(x, f) | ~is_number(y, f)
    return np.where(apart & (x != y), np.uint64(APART), steps)


def _ranks(x: np.ndarray, f: Format) -> np.ndarray:
    """Return the ranks of magnitudes as uint64, so that the sum of two does not overflow."""
    from roundscope.emu.backends.numba.ops import numpy_ops
    from roundscope.emu.formats.codes import encode

    ranks: np.ndarray = encode(numpy_ops(), np.abs(x), f).astype(np.uint64)
    return ranks
