"""What stands for a whole number where one is asked for: of Python, of NumPy, and never True or
False.
"""

from numbers import Integral
from typing import Any

SEED = "a seed is a whole number from 0 to 2^32 - 1"


def is_whole(x: Any) -> bool:
    """Return whether x is a whole number of Python or NumPy; True and False are not, nor are
    arrays.
    """
    return isinstance(x, Integral) and not isinstance(x, bool)


def check_whole(name: str, x: Any, repair: str) -> None:
    """Raises TypeError for what is no whole number."""
    if not is_whole(x):
        raise TypeError(f"{name}={x!r}: give a whole number; {repair}")


def check_seed(name: str, x: Any) -> None:
    """Raises ValueError for what is no seed."""
    if not (is_whole(x) and 0 <= x < 2**32):
        raise ValueError(f"{name}={x!r}: {SEED}")
