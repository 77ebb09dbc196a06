"""`Ops` on NumPy arrays with Numba kernels.

Each call runs on one thread and releases the interpreter lock. Kernels are imported when they are
first called, since Numba takes a third of a second to start and programs may leave nothing to them.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from roundscope.emu.backends.numpy_rounding import in_binary32
from roundscope.emu.backends.ops import Event, Ops, mapped, rebuilt
from roundscope.emu.backends.threads import over_threads
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import BINARY32, Rounding
from roundscope.emu.sums.aligned import Factors

_PIECE = 2**14  # terms that are added at once, which fit into a core's cache


def _round(x: np.ndarray, r: Rounding, random: np.ndarray | None = None) -> np.ndarray:
    if r.is_identity:
        return x
    if r == BINARY32:
        return in_binary32(np.asarray(x, dtype=np.float64))
    from roundscope.emu.backends.numba.rounding import round_array

    return round_array(np.asarray(x, dtype=np.float64), r, random)


def _odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    from roundscope.emu.backends.numba.sums import odd_sum

    return odd_sum(a, b)


def _ascending(a: np.ndarray, b: np.ndarray, init: np.ndarray, r: Rounding, _: int) -> np.ndarray:
    from roundscope.emu.backends.numba.sums import ascending

    return ascending(a, b, init, r)


def _stats(events: Sequence[Event]) -> list[Any]:
    from roundscope.emu.backends.numba.stats import stats

    return [stats(*event) for event in events]


def _round_blocks(
    x: np.ndarray, f: BlockFormat, axis: int, random: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    from roundscope.emu.blocks.kernels import quantise  # compiled only for those who use it
    from roundscope.emu.blocks.layout import round_blocks

    return round_blocks(np, quantise, np.float64, np.asarray(x, dtype=np.float64), f, axis, random)


def _aligned(a: Factors, b: Factors, init: np.ndarray, acc: Any) -> np.ndarray:
    from roundscope.emu.backends.numba import sums
    from roundscope.emu.backends.numba.downward import downward
    from roundscope.emu.sums.aligned import Alignment
    from roundscope.emu.sums.matrix_cores import CutDownward

    is_finite = all(np.isfinite(x).all() for x in (a[0], b[0], init))
    if is_finite and isinstance(acc.alignment, Alignment):
        return sums.aligned(a, b, init, acc)
    if is_finite and isinstance(acc.alignment, CutDownward):
        return downward(a, b, init, acc)
    return _in_pieces(a, b, init, acc)


def _in_pieces(a: Factors, b: Factors, init: np.ndarray, acc: Any) -> np.ndarray:
    """Return the sum of `emu.sums.aligned`, computed in pieces that fit into the cache."""
    from roundscope.emu.sums.aligned import aligned

    total = np.empty(init.shape)
    columns = min(max(1, init.shape[1]), 256)
    lines = max(1, _PIECE // (columns * acc.chunk))

    def rows(first: int, end: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN among the terms
            for lo, left in product(range(first, end, lines), range(0, init.shape[1], columns)):
                i, j = slice(lo, min(lo + lines, end)), slice(left, left + columns)
                x, y = tuple(v[:, i] for v in a), tuple(v[:, j] for v in b)
                total[i, j] = aligned(numpy_ops(), x, y, init[i, j], acc)

    over_threads(rows, init.shape[0], a[0].size * init.shape[1])
    return total


def _scan(body: Any, carry: Any, xs: tuple[Any, ...]) -> tuple[Any, Any]:
    ys = []
    for k in range(xs[0].shape[0]):
        carry, y = body(carry, k, rebuilt(xs, (None if x is None else x[k] for x in xs)))
        ys.append(y)
    return carry, stack(ys)


def stack(ys: list[Any]) -> Any:
    """Return a list of structures of arrays as one structure of stacked arrays.

    All structures have the same form; an entry None is replaced by zeros.
    """

    def stacked(*parts: Any) -> Any:
        like = next((y for y in parts if y is not None), None)
        if like is None:
            return None
        return np.stack([np.zeros_like(like) if y is None else y for y in parts])

    return mapped(stacked, *ys)


@cache
def numpy_ops() -> Ops:
    """Return the `Ops` record for NumPy arrays."""
    return Ops(
        xp=np,
        round=_round,
        round_blocks=_round_blocks,
        transposed=lambda x: x.T,
        odd_sum=_odd_sum,
        multiply=np.multiply,
        hidden=lambda x: x,
        divide=np.divide,
        bits=lambda x: np.asarray(x, dtype=np.float64).view(np.int64),
        from_bits=lambda b: np.asarray(b, dtype=np.int64).view(np.float64),
        scan=_scan,
        when=lambda active, compute, state: compute() if active else (state, None),
        call=lambda function, x: function(numpy_ops(), x),
        native=np.matmul,
        aligned=_aligned,
        ascending=_ascending,
        stats=_stats,
    )
