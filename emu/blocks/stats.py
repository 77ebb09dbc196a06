"""`BlockStats`: the errors of a block format on an array, and those that its scale rule adds.

In this module V is a number of the array, X the scale of its block, T the scale of the whole array
and m the largest element. A number is **clipped** if its scale cannot reach it, that is if `|V| > m
T X`. It is **saturated** if it would also have rounded to nearest beyond m in an element format
without an upper bound. Neither says how much error that caused, since m may have been the nearest
element anyway. The **excess** does: it is the error less the error of the same format with the
scale rule RCEIL, which clips nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roundscope.emu.arrays import ArrayLike
from roundscope.emu.blocks.api import from_blocks, to_blocks
from roundscope.emu.blocks.blocked import Blocked, check_blocked
from roundscope.emu.blocks.format import BlockFormat, block_format
from roundscope.emu.blocks.layout import layout_of, scales_to_lines, to_lines
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.errors import known_arguments
from roundscope.emu.libraries import float_array
from roundscope.emu.tensors import takes_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Counts and sums over the blocks of arrays; `+` merges two.

    In the formulas V is a number of the array and Q is V rounded to the block format. All sums are
    over the numbers whose rounded value is finite. Blocks whose scale is NaN and blocks of zeros
    count only in `numbers`, `blocks`, `nan_blocks`, `zero_blocks` and `distinct`.

    Attributes:
        numbers: the number of numbers, without padding.
        blocks: the number of blocks.
        nan_blocks: the number of blocks whose scale is NaN.
        zero_blocks: the number of blocks of zeros.
        clipped: how many numbers are too large for their scale: they are larger in magnitude than
            the largest element times the scale of the block and the scale of the array.
        saturated: how many clipped numbers would have rounded beyond the largest element, to
            nearest, if the element format had no upper bound.
        clipped_blocks: the number of blocks with a clipped number.
        underflow: how many numbers other than 0 became 0.
        subnormal: how many numbers have a subnormal element.
        inexact: how many numbers changed.
        distinct: the sum over blocks of the number of distinct element values in the block. It is
            near `blocks` where values cluster.
        size: the sum of `|V|`.
        square: the sum of V^2.
        error: the sum of Q - V.
        absolute: the sum of `|Q - V|`.
        squared: the sum of (Q - V)^2.
        shrink: the sum of (Q - V) sign(V), which is the sum of `|Q|` - `|V|` and so negative where
            magnitudes become smaller.
        excess: the sum of `|Q - V|`, less the same sum under the scale rule RCEIL.
        excess_squared: the sum of (Q - V)^2, less the same sum under RCEIL.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> stats = emu.block_stats(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4")
        >>> stats.numbers, stats.clipped, stats.saturated, stats.underflow
        (4, 1, 0, 2)
    """

    numbers: int
    blocks: int
    nan_blocks: int
    zero_blocks: int
    clipped: int
    saturated: int
    clipped_blocks: int
    underflow: int
    subnormal: int
    inexact: int
    distinct: int
    size: float
    square: float
    error: float
    absolute: float
    squared: float
    shrink: float
    excess: float
    excess_squared: float

    def __add__(self, other: BlockStats) -> BlockStats:
        """Return the summary of both sets of blocks."""
        return BlockStats(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def relative_shrink(self) -> float:
        """The relative change of the sum of magnitudes, `shrink` / `size`.

        It is negative if the sum of magnitudes decreases.
        """
        return self.shrink / self.size if self.size else 0.0

    @property
    def relative_rms(self) -> float:
        """The relative root mean square error, which is the square root of `squared` / `square`."""
        return math.sqrt(self.squared / self.square) if self.square else 0.0

    @property
    def relative_excess(self) -> float:
        """The share of the absolute error that RCEIL would not have made, `excess` / `absolute`."""
        return self.excess / self.absolute if self.absolute else 0.0

    @property
    def codes_per_block(self) -> float:
        """The mean over blocks of the number of distinct element values in a block."""
        return self.distinct / self.blocks if self.blocks else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the fields as plain numbers, for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@takes_tensors
def block_stats(
    x: ArrayLike, format: str | BlockFormat, axis: int = -1, **changes: Any
) -> BlockStats:
    """Return the `BlockStats` of an array under a block format, computed on the host.

    Args:
        x: a float32 array of NumPy or JAX, or an array of narrower floats; it must not be empty.
        format: a name or a `BlockFormat`.
        axis: the axis along which the blocks run, the last by default.
        **changes: `mode`, `rule`, `overflow`, `seed` and `tensor_scale`, as `block_format` takes
            them.

    Returns:
        One summary of the whole array.

    Raises:
        ValueError: as `to_blocks` does, and for a float64 array.
        TypeError: as `round_blocks` does.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([1.0, 500.0], np.float32)
        >>> floor = emu.block_stats(x, "mxfp8_e4m3")
        >>> rceil = emu.block_stats(x, "mxfp8_e4m3", rule="rceil")
        >>> floor.clipped, floor.absolute, rceil.absolute, floor.excess
        (1, 52.0, 12.0, 40.0)
    """
    f, numbers = block_format(format, **changes), np.asarray(float_array(x))
    if numbers.dtype == np.float64:
        raise ValueError("x: float64; block statistics are of float32 arrays")
    b = to_blocks(numbers, f, axis)
    rceil = (
        from_blocks(to_blocks(numbers, replace(f, rule=ScaleRule.RCEIL), axis))
        if f.rule is not ScaleRule.RCEIL
        else from_blocks(b)
    )
    return _summary(numbers, b, np.asarray(rceil))


@known_arguments
def distinct_elements(b: Blocked) -> np.ndarray:
    """Return the number of distinct element values in each block; +0 and -0 count as one.

    Args:
        b: a `Blocked` array.

    Returns:
        A NumPy array of whole numbers with the shape of `b.scales`.

    Raises:
        TypeError: for anything but a `Blocked` array.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> b = emu.to_blocks(np.array([1.0, 30.0, 100.0, 3.3], np.float32), "mxfp4")
        >>> emu.distinct_elements(b).tolist()
        [3]
    """
    check_blocked(b)
    at = layout_of(b.shape, b.format, b.axis)
    there = to_lines(np, np.ones(b.shape, bool), at)
    lines = np.sort(np.where(there, to_lines(np, np.asarray(b.elements), at), np.nan), axis=1)
    new = (lines[:, 1:] != lines[:, :-1]) & ~np.isnan(lines[:, 1:])
    per_block = new.sum(axis=1) + 1
    moved = [at.scales[n] for n in at.moved]
    return np.asarray(
        per_block.reshape(moved).transpose([at.moved.index(n) for n in range(len(at.shape))])
    )


def _summary(x: np.ndarray, b: Blocked, rceil: np.ndarray) -> BlockStats:
    """Return the statistics of an array x from its blocks b and its numbers rounded under RCEIL."""
    f, e = b.format, b.format.element.format
    at = layout_of(b.shape, f, b.axis)
    there = to_lines(np, np.ones(b.shape, bool), at)
    v, p, q, r = (
        to_lines(np, np.asarray(y), at).astype(np.float64)
        for y in (x, b.elements, from_blocks(b), rceil)
    )
    scales = scales_to_lines(np.asarray(b.scales), at).astype(np.float64)
    size = np.abs(v)
    nan, zero = np.isnan(scales[:, 0]), (size == 0).all(axis=1)
    live = there & ~(nan | zero)[:, None]
    x_t = np.where(np.isnan(scales), 1.0, scales) * float(b.tensor)
    ulp = math.ldexp(1.0, e.emax - e.precision + 1)
    clipped = live & (size > e.max_finite * x_t)
    finite = live & np.isfinite(q) & np.isfinite(r)
    error, theirs = (np.where(finite, y - v, 0.0) for y in (q, r))

    def count(flags: np.ndarray) -> int:
        return int(np.count_nonzero(flags & live))

    return BlockStats(
        numbers=int(there.sum()),
        blocks=len(scales),
        nan_blocks=int(nan.sum()),
        zero_blocks=int(zero.sum()),
        clipped=count(clipped),
        saturated=count(size > (e.max_finite + ulp / 2) * x_t),
        clipped_blocks=int(clipped.any(axis=1).sum()),
        underflow=count((p == 0) & (size > 0)),
        subnormal=count((p != 0) & (np.abs(p) < e.min_normal)),
        inexact=count(q != v),
        distinct=int(distinct_elements(b).sum()),
        size=float(size[finite].sum()),
        square=float((v[finite] ** 2).sum()),
        error=float(error.sum()),
        absolute=float(np.abs(error).sum()),
        squared=float((error**2).sum()),
        shrink=float((error * np.copysign(1.0, v)).sum()),
        excess=float((np.abs(error) - np.abs(theirs)).sum()),
        excess_squared=float((error**2 - theirs**2).sum()),
    )
