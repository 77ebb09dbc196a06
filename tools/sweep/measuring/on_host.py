"""Results of cells in NumPy: `chosen` and `sums`, as in `tools.sweep.measuring.on_device`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.tools.sweep.measuring.sums import Arrays, Sums, sums_of


def chosen(found: Sequence[tuple[Arrays, int]], size: int) -> Arrays:
    """Return the entries (arrays, place in them) as one batch."""
    return {
        name: np.concatenate([arrays[name][place : place + 1] for arrays, place in found])
        for name in found[0][0]
    }


def sums(mine: Arrays, golden: Arrays, unfused: Arrays, emin: np.ndarray) -> dict[str, Sums]:
    """Return `sums_of`; arrays are in memory order, so that reshaping copies none twice."""
    mine, golden, unfused = (
        {name: _ordered(x) for name, x in arrays.items()} for arrays in (mine, golden, unfused)
    )
    with np.errstate(all="ignore"):  # inf - inf and the like are seen and left out
        return sums_of(numpy_ops(), mine, golden, unfused, emin)


def _ordered(x: Any) -> np.ndarray:
    return np.ascontiguousarray(x, dtype=np.float64)
