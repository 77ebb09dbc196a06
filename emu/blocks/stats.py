"""`BlockStats`: what a block format did to an array, mergeable; and what its scale rule cost beyond
RCEIL's.

A number that X cannot reach (|V| > m T X, m the largest element) is **clipped**; it is
**saturated** if it would also have rounded beyond m to nearest had the elements gone on. Neither
says what it cost, since m may have been the nearest element anyway. What a rule cost is its error
less that of the same format under RCEIL, which clips nothing: **excess**.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roundscope.emu.api import _carrier
from roundscope.emu.blocks.api import Blocked, check_blocked, from_blocks, to_blocks
from roundscope.emu.blocks.format import BlockFormat, ScaleRule, block_format
from roundscope.emu.blocks.layout import layout_of, scales_to_lines, to_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Counts and sums over the blocks of arrays; `+` merges two.

    numbers, blocks       how many, without padding
    nan_blocks, zero_blocks   blocks whose scale is NaN; blocks of zeros. Neither enters anything
                              below but `distinct`
    clipped, saturated    numbers (see above); clipped_blocks: blocks with one
    underflow, subnormal  numbers other than 0 that became 0; whose element is subnormal
    inexact               numbers that changed
    distinct              sum over blocks of the number of different elements used: near `blocks`
                          where values cluster
    size, square          sums of |V| and V^2; like all sums, of what stays finite
    error, absolute, squared   sums of Q - V, |Q - V|, (Q - V)^2
    shrink                sum of (Q - V) sign(V): negative where magnitudes shrink
    excess, excess_squared     sums of |Q - V| and (Q - V)^2, less those under RCEIL
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
        """Of both sets of blocks."""
        return BlockStats(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def relative_shrink(self) -> float:
        """shrink / size: the part of the magnitude that is lost, negative."""
        return self.shrink / self.size if self.size else 0.0

    @property
    def relative_rms(self) -> float:
        """Root of squared / square."""
        return math.sqrt(self.squared / self.square) if self.square else 0.0

    @property
    def relative_excess(self) -> float:
        """excess / absolute: the part of the error that RCEIL would not have made."""
        return self.excess / self.absolute if self.absolute else 0.0

    @property
    def codes_per_block(self) -> float:
        """Different elements in a block, in the mean."""
        return self.distinct / self.blocks if self.blocks else 0.0

    def as_dict(self) -> dict[str, float]:
        """Plain numbers, for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def block_stats(x: Any, format: str | BlockFormat, axis: int = -1, **changes: Any) -> BlockStats:
    """The `BlockStats` of an array (float32 or narrower, NumPy or JAX; on the host) under a block
    format.

    Raises ValueError as `round_blocks` does, and for float64.
    """
    f, x = block_format(format, **changes), np.asarray(_carrier(x))
    if x.dtype == np.float64:
        raise ValueError("x: float64; block statistics are of float32 arrays")
    b = to_blocks(x, f, axis)
    rceil = (
        from_blocks(to_blocks(x, replace(f, rule=ScaleRule.RCEIL), axis))
        if f.rule is not ScaleRule.RCEIL
        else from_blocks(b)
    )
    return _summary(x, b, rceil)


def distinct_elements(b: Blocked) -> np.ndarray:
    """How many different elements each block uses, +0 and -0 as one; the shape of the scales."""
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
    """Everything but the excess, which compares with the same array under RCEIL."""
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
