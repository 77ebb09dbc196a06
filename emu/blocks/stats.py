"""`BlockStats`: what a block format did to an array, and what its scale rule cost beyond RCEIL's.

A number that its scale cannot reach (`|V| > m T X`, m the largest element) is **clipped**; it is
**saturated** if it would also have rounded beyond m, to nearest, had the elements gone on. Neither
says what that cost, since m may have been the nearest element anyway. What a rule cost is its error
less the error of the same format under RCEIL, which clips nothing: the **excess**.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roundscope.emu.api import _carrier
from roundscope.emu.arrays import ArrayLike
from roundscope.emu.blocks.api import Blocked, check_blocked, from_blocks, to_blocks
from roundscope.emu.blocks.format import BlockFormat, ScaleRule, block_format
from roundscope.emu.blocks.layout import layout_of, scales_to_lines, to_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Counts and sums over the blocks of arrays; `+` merges two.

    V is a number of the array and Q what the block format keeps of it, T X P.

    Attributes:
        numbers: numbers, without padding.
        blocks: blocks.
        nan_blocks: blocks whose scale is NaN. Neither they nor blocks of zeros enter anything below
            but `distinct`.
        zero_blocks: blocks of zeros.
        clipped: numbers that their scale cannot reach: `|V| > m T X`, m the largest element.
        saturated: clipped numbers that would also have rounded beyond m.
        clipped_blocks: blocks with a clipped number.
        underflow: numbers other than 0 that became 0.
        subnormal: numbers whose element is subnormal.
        inexact: numbers that changed.
        distinct: the sum over blocks of the number of different elements used: near `blocks` where
            values cluster.
        size: the sum of `|V|`; like all sums, over the numbers that stay finite.
        square: the sum of V^2.
        error: the sum of Q - V.
        absolute: the sum of `|Q - V|`.
        squared: the sum of (Q - V)^2.
        shrink: the sum of (Q - V) sign(V): negative where magnitudes shrink.
        excess: the sum of `|Q - V|`, less the same under RCEIL.
        excess_squared: the sum of (Q - V)^2, less the same under RCEIL.

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

    def __add__(self, other: "BlockStats") -> "BlockStats":
        """Return the summary of both sets of blocks."""
        return BlockStats(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def relative_shrink(self) -> float:
        """The change of the magnitudes, shrink / size; negative where they shrink."""
        return self.shrink / self.size if self.size else 0.0

    @property
    def relative_rms(self) -> float:
        """The root mean square error relative to the numbers: the root of squared / square."""
        return math.sqrt(self.squared / self.square) if self.square else 0.0

    @property
    def relative_excess(self) -> float:
        """The part of the error that RCEIL would not have made, excess / absolute."""
        return self.excess / self.absolute if self.absolute else 0.0

    @property
    def codes_per_block(self) -> float:
        """The mean number of different elements in a block."""
        return self.distinct / self.blocks if self.blocks else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the fields as plain numbers, for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def block_stats(
    x: ArrayLike, format: str | BlockFormat, axis: int = -1, **changes: Any
) -> BlockStats:
    """Return the `BlockStats` of an array under a block format, computed on the host.

    Args:
        x: a float32 array of NumPy or JAX, or a narrower one, with one number or more.
        format: a name or a `BlockFormat`.
        axis: the axis along which the blocks run, the last by default.
        **changes: `mode`, `rule`, `overflow` and `seed`, as `block_format` takes them.

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
    f, numbers = block_format(format, **changes), np.asarray(_carrier(x))
    if numbers.dtype == np.float64:
        raise ValueError("x: float64; block statistics are of float32 arrays")
    b = to_blocks(numbers, f, axis)
    rceil = (
        from_blocks(to_blocks(numbers, replace(f, rule=ScaleRule.RCEIL), axis))
        if f.rule is not ScaleRule.RCEIL
        else from_blocks(b)
    )
    return _summary(numbers, b, np.asarray(rceil))


def distinct_elements(b: Blocked) -> np.ndarray:
    """Return how many different elements each block uses, +0 and -0 counting as one.

    Args:
        b: a `Blocked` array.

    Returns:
        A NumPy array of whole numbers, of the shape of the scales.

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
    """Return the statistics of one array; `rceil` holds its numbers under RCEIL."""
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
