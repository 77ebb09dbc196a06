"""`Stats` of rounding events, for every row of an array that is looked at some columns at a time: kernels are short of registers.

Counts are as exact as anywhere. Two share a word until a row is complete.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from emu.classify import COUNTS, SUMS, Judged
from emu.xla_ops import judged_events

BITS = 15  # of a count in a word: a row has at most 32,767 columns
NOWHERE = np.iinfo(np.int32).max


class SoFar(NamedTuple):
    """Of the columns seen, in arrays of the shape that is looked at: words of counts (int32), sums, the largest |error| in ulps and the
    column of the first that has it; -1 and NOWHERE where no event was.
    """

    words: tuple[Array, ...]
    sums: tuple[Array, ...]
    peak: Array
    column: Array


class RowStats(NamedTuple):
    """Arrays (rows,), by the names of emu.classify: counts (int32) and sums, those that may not be 0; peak and column as in `SoFar`."""

    counts: dict[str, Array]
    sums: dict[str, Array]
    peak: Array
    column: Array


def nothing_seen(shape: tuple[int, int]) -> SoFar:
    """Before the first columns."""
    word, number = jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    return SoFar((word,) * -(-len(COUNTS) // 2), (number,) * len(SUMS), number - 1.0, word + NOWHERE)


def with_columns(so_far: SoFar, before: Array, after: Array, valid: Array, column: Array, f: Judged) -> SoFar:
    """With float64 arrays of some columns more; valid: which events exist; column: their numbers, which grow from call to call."""
    flags, sums = judged_events(before, after, f, valid)
    size = sums[SUMS.index("abs_ulps")]
    words = [_word(flags[n : n + 2]) for n in range(0, len(COUNTS), 2)]
    is_new = valid & (size > so_far.peak)
    return SoFar(
        tuple(a + b for a, b in zip(so_far.words, words, strict=True)), tuple(a + b for a, b in zip(so_far.sums, sums, strict=True)),
        jnp.where(is_new, size, so_far.peak), jnp.where(is_new, column, so_far.column),
    )  # fmt: skip


def of_rows(seen: SoFar) -> RowStats:
    """The rows, complete."""
    counts = [x for word in seen.words for x in _counts(word)]
    peak = seen.peak.max(axis=1)
    column = jnp.where(seen.peak == peak[:, None], seen.column, np.int32(NOWHERE)).min(axis=1)
    sums = (x.sum(axis=1) for x in seen.sums)
    return RowStats(dict(zip(COUNTS, counts, strict=False)), dict(zip(SUMS, sums, strict=True)), peak, column)


def of_exact_rows(results: Array, valid: Array, f: Judged) -> RowStats:
    """Of events that had nothing to round; the first `valid` (rows,) of each row exist."""
    exists = jnp.arange(results.shape[1], dtype=jnp.int32) < valid[:, None]
    flags, _ = judged_events(results, results, f, exists)
    subnormal, nan = _counts(_word([flags[COUNTS.index(name)] for name in ("subnormal", "nan")]))
    return RowStats({"n": valid, "subnormal": subnormal, "nan": nan}, {}, jnp.where(valid > 0, 0.0, -1.0), jnp.zeros_like(valid))


def _word(flags: Sequence[Any]) -> Array:
    parts = [jnp.where(flag, np.int32(1 << BITS * k), np.int32(0)) for k, flag in enumerate(flags)]
    return sum(parts[1:], parts[0])


def _counts(word: Array) -> list[Array]:
    total = word.reshape(-1) if word.shape[1] == 1 else jnp.sum(word, axis=1, dtype=jnp.int32)
    return [total >> np.int32(BITS * k) & np.int32((1 << BITS) - 1) for k in range(2)]
