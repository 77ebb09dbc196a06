"""Numbers for equal values and equal rows, from columns, without a Python object for each row."""

from collections.abc import Sequence

import numpy as np

LARGEST = 1 << 62  # what an int64 holds, with room


def numbered(x: np.ndarray) -> np.ndarray:
    """Return the rank of each number among the different ones."""
    return np.unique(x, return_inverse=True)[1].reshape(-1)


def bits(x: np.ndarray) -> np.ndarray:
    """Return a number for each binary64, the same for those of the same bits. All NaN are one."""
    return numbered(np.where(np.isnan(x), np.nan, x).view(np.int64))


def places(column: np.ndarray, values: Sequence[object]) -> np.ndarray:
    """Return the index in `values` of each value of a column of objects."""
    place = {value: i for i, value in enumerate(values)}
    return np.fromiter((place[value] for value in column), np.int64, len(column))


def together(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number for each row of columns of numbers from 0, the same for equal rows."""
    number, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        count = int(column.max(initial=0)) + 1
        if size * count > LARGEST:  # as few numbers as there are different rows
            number = numbered(number)
            size = int(number.max(initial=0)) + 1
        number, size = number * count + column, size * count
    return numbered(number)
