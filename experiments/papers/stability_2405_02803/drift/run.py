"""Trains all versions side by side, step by step.

No weights are kept: at every look they are compared and dropped.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from roundscope.experiments.papers.stability_2405_02803.drift import weights
from roundscope.experiments.papers.stability_2405_02803.drift.trainings import (
    PAIRS,
    Apart,
    Drifts,
    Training,
    executables,
)
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import batches_of

Arm = tuple[str, int]  # version, seed
# (pair, seed) -> the columns of Apart
Look = dict[tuple[str, int], tuple[float, float, float, float]]


class Side:
    """The arms of one executable."""

    def __init__(self, settings: Any, arms: Sequence[Arm], seeds: Sequence[int]) -> None:
        state = one_step.start(settings.config, len(arms), seeds)
        self.arms, self.group, self.losses = (
            arms,
            Group(settings, list(range(len(arms))), state),
            list[Any](),
        )

    def advance(self, number: int, batches: dict[int, np.ndarray]) -> None:
        """Do one step of all arms."""
        self.losses.append(self.group.advance(number, batches)[0])

    def taken(self) -> tuple[Sequence[Arm], Any, list[Any]]:
        """Return the arms, their weights now, and the losses since the last time, on the device."""
        losses, self.losses = self.losses, []
        return self.arms, self.group.state.params, losses


def run(t: Training, progress: Callable[[int], None]) -> Drifts:
    """Return how far every pair of every seed is apart at `t.steps`.

    The same seed of two versions sees the same batches, and the same device gives the same numbers.
    `progress` is called with the number of steps done. Raises UsageError for data that is not
    there.
    """
    found = executables(t)
    sides, batches = [Side(*each) for each in found], batches_of(found[0][0])
    looks, waiting, steps = list[Look](), [side.taken() for side in sides], t.steps
    for first, last in pairwise(steps):
        for number in range(first, last):
            _advance(sides, number, {seed: b.batch(number) for seed, b in batches.items()})
        looks.append(_look(waiting, t))  # meanwhile the device works on the steps sent since
        waiting = [side.taken() for side in sides]
        progress(last)
    looks.append(_look(waiting, t))
    return _gathered(looks, t)


def _advance(sides: Sequence[Side], number: int, drawn: dict[int, np.ndarray]) -> None:
    """Do one step of every side; the first step compiles, for all at the same time."""
    with ThreadPoolExecutor() if number == 0 else nullcontext() as pool:
        list((pool.map if pool else map)(lambda side: side.advance(number, drawn), sides))


def _look(taken: Sequence[tuple[Sequence[Arm], Any, list[Any]]], t: Training) -> Look:
    """Compare every pair of every seed."""
    trees: dict[Arm, Any] = {}
    losses: dict[Arm, float] = {}
    for arms, params, seen in taken:
        params, seen = jax.device_get((params, seen))
        for i, arm in enumerate(arms):
            trees[arm] = jax.tree.map(lambda leaf, i=i: leaf[i], params)
            losses[arm] = float(np.mean([x[i] for x in seen])) if seen else np.nan
    two = {
        (pair, seed): [(version, seed) for version in PAIRS[pair]]
        for pair in t.pairs
        for seed in range(t.seeds)
    }
    return {
        place: (*apart(trees[a], trees[b]), losses[a], losses[a] - losses[b])
        for place, (a, b) in two.items()
    }


def apart(a: Any, b: Any) -> tuple[float, float]:
    """Return the largest difference of all weights, and the tensors' mean Wasserstein distance.

    The mean is over all weights.
    """
    found = weights.distances(a, b)
    size = np.array([d.size for d in found])
    return max(d.max_difference for d in found), float(
        size @ np.array([d.wasserstein for d in found]) / size.sum()
    )


def _gathered(looks: Sequence[Look], t: Training) -> Drifts:
    names = ("max_difference", "wasserstein", "loss", "gap")
    columns = {place: np.array([look[place] for look in looks]).T for place in looks[0]}
    return {
        pair: {
            seed: Apart(**dict(zip(names, columns[pair, seed], strict=True)))
            for seed in range(t.seeds)
        }
        for pair in t.pairs
    }
