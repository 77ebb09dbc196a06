"""Where the numbers of two results differ: in a row or a few features, or all over the place.

A rounding that a plan lacks changes numbers everywhere. Numbers that differ in one place are made
by what the code does there.
"""

from dataclasses import dataclass

import numpy as np

FEWEST = 16  # numbers that differ, of which fewer say nothing of where they are
GATHERED = 0.8  # the share of them that has to be in one place
NARROW = 16  # which is at most so small a part of all tokens, or of all features
CLEAR = 10.0  # standard errors by which a factor has to differ from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Where most of the numbers that differ are, if that is a small part of a result.

    words    how many there are, and in which tokens or features
    factor   how many times the plan's numbers the kernel's are there; 0 if they are no multiple
    """

    words: str
    factor: float


def gathered(got: np.ndarray, want: np.ndarray, apart: np.ndarray) -> Gathered | None:
    """Return where most numbers differ, as with one row that the code treats in another way.

    Args:
        got: the plan's result, (B, T, N, H).
        want: the kernel's.
        apart: which of these numbers differ.
    """
    total = int(apart.sum())
    if total < FEWEST:
        return None
    for axis, name in ((1, "token"), (3, "feature")):
        counts = apart.sum(tuple(i for i in range(4) if i != axis))
        begin, end = _shortest(counts, GATHERED * total)
        if (end - begin) * NARROW > counts.size:
            continue
        there = [slice(None)] * 4
        there[axis] = slice(begin, end)
        one = f"{name} {begin}" if end - begin == 1 else f"{name}s {begin} to {end - 1}"
        words = f"{int(counts[begin:end].sum()):,} of them in {one} of {counts.size}"
        factor = _factor(got[tuple(there)], want[tuple(there)])
        if factor:
            words += f", where the kernel's numbers are {factor:.4g} times the plan's"
        return Gathered(words=words, factor=factor)
    return None


def _shortest(counts: np.ndarray, least: float) -> tuple[int, int]:
    """Return the shortest interval of counts whose sum is at least so large."""
    sums = np.concatenate([[0], counts.cumsum()])
    ends = np.searchsorted(sums, sums[:-1] + least)
    begin = int(np.argmin(np.where(ends < sums.size, ends - np.arange(counts.size), counts.size)))
    return begin, int(min(ends[begin], counts.size))


def _factor(got: np.ndarray, want: np.ndarray) -> float:
    """Return how many times the plan's numbers the kernel's are; 0 if that is 1, or no factor."""
    a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    size = float(a @ a)
    if not (np.isfinite(size) and np.isfinite(b).all() and size):
        return 0.0
    factor = float(a @ b) / size
    spread = float(np.square(b - factor * a).sum()) / a.size
    error = max(np.sqrt(spread / size), 2.0**-12 / CLEAR)
    return factor if abs(factor - 1.0) > CLEAR * error else 0.0
