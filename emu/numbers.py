"""Checks of arguments that have to be whole numbers.

Whole numbers of Python and of NumPy are accepted alike; True and False never are.
"""

from numbers import Integral
from typing import Any

SEED = "a seed is a whole number from 0 to 2^32 - 1"


def is_whole(x: Any) -> bool:
    """Return whether x is a whole number of Python or NumPy; booleans and arrays are not."""
    return isinstance(x, Integral) and not isinstance(x, bool)


def check_whole(name: str, x: Any, repair: str) -> None:
    """Raise TypeError unless x is a whole number; the message names the argument and the fix."""
    if not is_whole(x):
        raise TypeError(f"{name}={x!r}: give a whole number; {repair}")


def check_seed(name: str, x: Any) -> None:
    """Raise ValueError unless x is a seed, a whole number from 0 to 2^32 - 1."""
    if not (is_whole(x) and 0 <= x < 2**32):
        raise ValueError(f"{name}={x!r}: {SEED}")
