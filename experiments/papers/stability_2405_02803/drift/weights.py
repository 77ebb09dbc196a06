"""How far two trainings have drifted apart: the weight metrics of arXiv 2405.02803.

The paper compares the weights of two runs by max |a - b| and by the Wasserstein distance of their
distributions, and gives them a scale by two references: runs that differ in their initialization,
and runs that differ in precision (FP16 against FP32). Here both come per tensor, with repeats and
intervals. Weights are nested dicts, lists or tuples of arrays; a tensor's name is its path, joined
by dots.

A small distance is no proof of stability: neither metric sees the sign or the coherence of a
difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.experiments.framework.estimates import Estimate, mean, slope

Run = Sequence[tuple[float, Any]]  # (step, weights), steps ascending
Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far one tensor of two trees lies apart, NaN where an entry is not finite."""

    name: str
    size: int
    max_difference: float
    wasserstein: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One tensor's distances between runs of different seeds and of different precisions."""

    name: str
    seed: dict[str, Estimate]
    precision: dict[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One tensor's distance over time.

    steps      (K,)
    distances  metric -> (repeats, K)
    slopes     metric -> the least-squares slope per step of each repeat, over repeats
    """

    name: str
    steps: np.ndarray
    distances: dict[str, np.ndarray]
    slopes: dict[str, Estimate]


METRICS = ("max_difference", "wasserstein")


def max_difference(a: Any, b: Any) -> float:
    """Return max |a - b| of two tensors of one shape, in binary64.

    It is NaN if an entry of either is not finite.
    """
    a, b = _pair(a, b)
    return float(np.abs(a - b).max()) if _finite(a, b) else math.nan


def wasserstein(a: Any, b: Any) -> float:
    """Return the Wasserstein-1 distance of the distributions of the entries of two tensors.

    The tensors have one size. It equals scipy.stats.wasserstein_distance: for equal numbers of
    entries it is the mean distance of sorted ones. Which entry is where does not matter, so a
    tensor and its permutation are at distance 0. It is NaN if an entry is not finite.
    """
    a, b = _pair(a, b)
    return float(np.abs(np.sort(a) - np.sort(b)).mean()) if _finite(a, b) else math.nan


def distances(a: Any, b: Any) -> list[Distance]:
    """Return the distances of every tensor of two trees of one structure, in the order of a's.

    Raises ValueError naming what differs.
    """
    left, right = _leaves(a), _leaves(b)
    if left.keys() != right.keys():
        raise ValueError(
            f"weights: only one run has {' '.join(sorted(left.keys() ^ right.keys())[:4])}; compare"
            " runs of one model"
        )
    return [_distance(name, left[name], right[name]) for name in left]


def bands(seed_pairs: Sequence[Pair], precision_pairs: Sequence[Pair]) -> list[Band]:
    """Return the two references of every tensor, each over its pairs of final weights.

    They are other initialization and other precision.
    """
    seed, precision = (
        {n: _over_repeats(d) for n, d in _by_name(p).items()} for p in (seed_pairs, precision_pairs)
    )
    if seed.keys() != precision.keys():
        raise ValueError(
            f"bands: {len(seed)} tensors by seed, {len(precision)} by precision; give pairs of one"
            " model"
        )
    return [Band(name=name, seed=seed[name], precision=precision[name]) for name in seed]


def relative(
    found: Sequence[Distance], references: Sequence[Band]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return name -> metric -> the distance over the means of both bands.

    The first number is over the seed band's mean, the second over the precision band's; NaN for 0 /
    0.
    """
    by_name = {band.name: band for band in references}
    return {d.name: {m: _shares(getattr(d, m), by_name[d.name], m) for m in METRICS} for d in found}


def drift(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[Drift]:
    """Return per tensor the distance of run i of a and run i of b at each step, and its slope.

    The slope is that of a straight line with an intercept, fitted to the distance itself: a
    distance starts at 0 where both runs start alike, which has no logarithm, and the paper compares
    growth per step. Every repeat gives one slope; the interval is over repeats, since steps of one
    run are no independent draws.

    Raises ValueError unless all runs have the same steps, two or more.
    """
    steps = _common_steps([*runs_a, *runs_b])
    if len(runs_a) != len(runs_b):
        raise ValueError(f"runs: {len(runs_a)} and {len(runs_b)}; every run needs its partner")
    repeats = [
        [distances(a, b) for (_, a), (_, b) in zip(x, y, strict=True)]
        for x, y in zip(runs_a, runs_b, strict=True)
    ]
    return [
        _drift(steps, [[at[i] for at in repeat] for repeat in repeats])
        for i in range(len(repeats[0][0]))
    ]


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return arrays by dotted path."""
    if isinstance(tree, Mapping | list | tuple):
        items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        return {
            name: leaf
            for key, part in items
            for name, leaf in _leaves(part, (*path, str(key))).items()
        }
    return {".".join(path) or "weights": tree}


def _distance(name: str, a: Any, b: Any) -> Distance:
    if np.shape(a) != np.shape(b):
        raise ValueError(f"tensor {name}: shapes {np.shape(a)} and {np.shape(b)}, must be equal")
    return Distance(
        name=name,
        size=int(np.size(a)),
        max_difference=max_difference(a, b),
        wasserstein=wasserstein(a, b),
    )


def _pair(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two tensors' entries in binary64."""
    if np.shape(a) != np.shape(b) or np.size(a) == 0:
        raise ValueError(
            f"tensors: shapes {np.shape(a)} and {np.shape(b)}, must be equal and not empty"
        )
    left, right = (np.asarray(x).astype(np.float64).reshape(-1) for x in (a, b))
    return left, right


def _finite(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.isfinite(a).all() and np.isfinite(b).all())


def _by_name(pairs: Sequence[Pair]) -> dict[str, list[Distance]]:
    """Return every tensor's distances, one for each pair."""
    if not pairs:
        raise ValueError("pairs: none given; a band needs one at least, and two for an interval")
    each = [distances(a, b) for a, b in pairs]
    return {d.name: [e[i] for e in each] for i, d in enumerate(each[0])}


def _over_repeats(found: Sequence[Distance]) -> dict[str, Estimate]:
    return {m: mean({i: getattr(d, m) for i, d in enumerate(found)}) for m in METRICS}


def _shares(distance: float, band: Band, metric: str) -> tuple[float, float]:
    seed, precision = band.seed[metric].mean, band.precision[metric].mean
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(distance, seed)), float(np.divide(distance, precision))


def _common_steps(runs: Sequence[Run]) -> np.ndarray:
    each = [[float(step) for step, _ in run] for run in runs]
    if not each or any(e != each[0] for e in each) or len(set(each[0])) < 2:
        raise ValueError(
            "runs: steps differ or are fewer than two; give every run at the same two steps or more"
        )
    return np.array(each[0])


def _drift(steps: np.ndarray, repeats: Sequence[Sequence[Distance]]) -> Drift:
    """Return the drift of one tensor; repeats: its distances at each step, for each repeat."""
    found = {m: np.array([[getattr(d, m) for d in repeat] for repeat in repeats]) for m in METRICS}
    slopes = {m: mean({i: slope(steps, row) for i, row in enumerate(found[m])}) for m in METRICS}
    return Drift(name=repeats[0][0].name, steps=steps, distances=found, slopes=slopes)
