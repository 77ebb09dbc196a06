"""The sums, counts and maxima over each cell's entries from which METRICS are computed.

They are written once for every array library. Every sum is a halving tree, so its order is fixed by
its length alone; a product that is added goes through `Ops.multiply`, which no compiler fuses;
quotients of the results and roots are left to the host (`tools.sweep.measuring.metrics`). So
numpy, xla on a CPU and xla on a GPU give the same bits, whatever cells share a call. XLA on a CPU
flushes numbers below 2^-1022: it would show only in a cell all of whose deviations are below
2^-511.

Arrays are binary64 with the cells along the first axis: (C, T or S, N, H), lse and delta (C, T, N).

`chosen` and `sums` are those of NumPy; `tools.sweep.measuring.on_device` has those of JAX.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.ops import Array, Ops

Arrays = dict[str, Any]
Sums = dict[str, Any]  # arrays (C,), or (C, N) of heads, by name
GRADIENTS = ("dq", "dk", "dv")


def chosen(found: Sequence[tuple[Arrays, int]], size: int) -> Arrays:
    """Return the entries (arrays, place in them) as one batch."""
    return {
        name: np.concatenate([arrays[name][place : place + 1] for arrays, place in found])
        for name in found[0][0]
    }


def sums(mine: Arrays, golden: Arrays, unfused: Arrays, emin: np.ndarray) -> dict[str, Sums]:
    """Return `sums_of`; arrays are in memory order, so that reshaping copies none twice."""
    mine, golden, unfused = (
        {name: np.ascontiguousarray(x, dtype=np.float64) for name, x in arrays.items()}
        for arrays in (mine, golden, unfused)
    )
    with np.errstate(all="ignore"):  # inf - inf and the like are seen and left out
        return sums_of(numpy_ops(), mine, golden, unfused, emin)


def total(xp: Any, x: Array) -> Array:
    """Return the sum over the last axis, x[:half] + x[half:] over and over, padded with zeros."""
    size = x.shape[-1]
    half = 1 << (size - 1).bit_length()
    if half > size:
        x = xp.concatenate([x, xp.zeros((*x.shape[:-1], half - size), x.dtype)], axis=-1)
    while half > 1:
        half //= 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def sums_of(
    ops: Ops, mine: Arrays, golden: Arrays, unfused: Arrays, emin: Array
) -> dict[str, Sums]:
    """Return all that METRICS need of the results of cells.

    emin: the exponent of the smallest normal number of each cell's OUT format.
    """
    out, exact, plain = (_rows(x["out"]) for x in (mine, golden, unfused))
    found = {
        "out": _deviation(ops, out, exact, "first peak size square rows golden"),
        "unfused": _deviation(ops, plain, exact, "peak size square"),
        "between": _deviation(ops, out, plain, "peak"),
        "lse": _deviation(
            ops, _rows(mine["lse"][..., None]), _rows(golden["lse"][..., None]), "peak"
        ),
    }
    found["out"]["binades"] = _binades(ops, exact, emin)
    found["out"] |= _by_head(ops, mine["out"], golden["out"])
    if "delta" in mine:
        found |= {
            g: _deviation(ops, _rows(mine[g]), _rows(golden[g]), "first peak square sum golden")
            | _by_head(ops, mine[g], golden[g])
            for g in GRADIENTS
        }
        found["delta"] = _deviation(
            ops, _rows(mine["delta"][..., None]), _rows(golden["delta"][..., None]), "square rows"
        )
    return found


def _deviation(ops: Ops, x: Array, golden: Array, wanted: str) -> Sums:
    """Return sums over x - golden (C, rows, H) where both are finite; wanted: the names of some.

    n       entries counted;  entries: all there are
    lost    entries whose deviation is not finite, though they do not agree (both NaN, or the same
            infinity): those of `roundscope.emu.stats.comparison.is_lost`, for which no sum stands
    first   the row of the first of them, 0 if there is none
    peak    largest magnitude;  size, square, sum: sums of magnitudes, of squares, and with sign
    rows    sum, `filled` (rows with entries), and `spread`: the sum of squares of the rows' means
            about the mean of these means
    golden  sum of squares of golden, over its finite entries
    """
    xp, names = ops.xp, wanted.split()
    d = x - golden
    finite = xp.isfinite(d)
    d = xp.where(finite, d, 0.0)
    n = _count(finite)
    same = (x == golden) | (xp.isnan(x) & xp.isnan(golden))
    lost = ~finite & ~same
    found = {
        "n": n,
        "lost": _count(lost),
        "entries": xp.full(n.shape, d.shape[1] * d.shape[2]),
    }
    if "first" in names:
        found["first"] = lost.any(-1).argmax(-1)
    if "peak" in names:
        size = _flat(xp.abs(d))
        found["peak"] = size.max(-1)
        if "size" in names:
            found["size"] = total(xp, size)
    if "square" in names:
        found["square"] = _squares(ops, d)
    if "golden" in names:
        found["golden"] = _squares(ops, xp.where(xp.isfinite(golden), golden, 0.0))
    if "sum" in names:
        found["sum"] = total(xp, total(xp, d))
    if "rows" in names:
        found |= _by_row(ops, d, finite)
    return found


def _by_head(ops: Ops, x: Array, golden: Array) -> Sums:
    """Return what gains are made of, for each head of (C, T, N, H), both (C, N).

    along   the sum of (x - golden) golden, over entries where both are finite
    length  the sum of squares of golden, over its finite entries
    off     the sum of squares of x - golden, over entries where both are finite
    """
    xp = ops.xp
    cells, _, heads, _ = golden.shape
    ours, theirs = (v.swapaxes(1, 2).reshape(cells, heads, -1) for v in (x, golden))
    d = ours - theirs
    d = xp.where(xp.isfinite(d), d, 0.0)
    theirs = xp.where(xp.isfinite(theirs), theirs, 0.0)
    return {
        "along": total(xp, ops.multiply(d, theirs)),
        "length": total(xp, ops.multiply(theirs, theirs)),
        "off": total(xp, ops.multiply(d, d)),
    }


def _by_row(ops: Ops, d: Array, finite: Array) -> Sums:
    """Return sum, filled and spread: see `_deviation`."""
    xp = ops.xp
    sums, counts = total(xp, d), finite.sum(-1)
    filled = _count(counts > 0)
    means = sums / xp.maximum(counts, 1).astype(xp.float64)
    center = total(xp, means) / xp.maximum(filled, 1).astype(xp.float64)
    spread = xp.where(counts > 0, means - center[:, None], 0.0)
    return {"sum": total(xp, sums), "filled": filled, "spread": _squares(ops, spread)}


def _binades(ops: Ops, golden: Array, emin: Array) -> Array:
    """Return the sum of 2^max(e, emin) over golden (C, rows, H), e its exponent."""
    xp = ops.xp
    field = (ops.bits(golden) >> 52) & 0x7FF
    exponent = xp.where(field == 0x7FF, -1, field - 1023)  # as of 1/2 where there is no number
    return total(xp, ops.from_bits((_flat(xp.maximum(exponent, emin[:, None, None])) + 1023) << 52))


def _squares(ops: Ops, x: Array) -> Array:
    return total(ops.xp, _flat(ops.multiply(x, x)))


def _count(flags: Array) -> Array:
    return _flat(flags).sum(-1)


def _rows(x: Array) -> Array:
    """Return (C, T, N, H) as (C, T N, H)."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _flat(x: Array) -> Array:
    return x.reshape(x.shape[0], -1)
