"""Counts of runs that diverged: intervals of shares, sign tests of paired runs, and times."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, binomtest, rankdata

from roundscope.experiments.framework.verdicts import Word
from roundscope.tools.results.run import Run

LEVEL = 0.05  # the significance level of one-sided tests


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Steps to divergence over seeds, infinity without; [low, high] are the extremes."""

    middle: float
    low: float
    high: float
    diverged: int
    runs: int
    steps: int

    @property
    def count(self) -> str:
        """How many runs diverged: "k of n"."""
        return f"{self.diverged} of {self.runs}"

    @property
    def words(self) -> str:
        """How many runs diverged and when, in words."""
        if not self.diverged:
            return f"{self.count} in {self.steps} steps"
        middle, low, high = map(self._step, (self.middle, self.low, self.high))
        return f"{self.count}, median {middle} [{low}, {high}]"

    def _step(self, x: float) -> str:
        return f"{x:.0f}" if math.isfinite(x) else f"> {self.steps}"


def time_of(runs: Sequence[Run[Any]]) -> Time:
    """Return the times to divergence of the seeds of one condition."""
    x = np.array([run.time for run in runs])
    return Time(
        middle=float(np.median(x)),
        low=float(x.min()),
        high=float(x.max()),
        diverged=int(np.isfinite(x).sum()),
        runs=x.size,
        steps=min(run.steps for run in runs),
    )


def diverged(runs: Iterable[Run[Any]]) -> int:
    """Return how many of the runs diverged."""
    return sum(run.diverged is not None for run in runs)


def times(runs: Sequence[Run[Any]]) -> str:
    """Return "k of n" with the median step and the range of those that diverged."""
    return f"{diverged(runs)} of {len(runs)}{_steps(runs)}"


def counted(runs: Sequence[Run[Any]]) -> str:
    """Return "k of n" with the 95 % interval of the share, and the steps as in `times`."""
    if not runs:
        return "0 of 0"
    low, high = share(diverged(runs), len(runs))
    return f"{diverged(runs)} of {len(runs)} [{low:.0%}, {high:.0%}]{_steps(runs)}"


def _steps(runs: Sequence[Run[Any]]) -> str:
    steps = sorted(run.diverged for run in runs if run.diverged is not None)
    return f", step {np.median(steps):.0f} [{steps[0]}, {steps[-1]}]" if steps else ""


def share(k: int, n: int) -> tuple[float, float]:
    """Return the 95 % Clopper-Pearson interval of the share k / n."""
    low = 0.0 if k == 0 else float(beta.ppf(0.025, k, n - k + 1))
    return low, 1.0 if k == n else float(beta.ppf(0.975, k + 1, n - k))


def at_least(wins: int, of: int, chance: float) -> float:
    """Return the probability of `wins` or more successes in `of` trials."""
    return float(binomtest(wins, of, chance, alternative="greater").pvalue)


@dataclass(frozen=True, slots=True)
class Signs:
    """How many pairs have a first run that diverged earlier, and later; ties are left out."""

    earlier: int
    later: int

    @property
    def word(self) -> Word:
        """The verdict on "the first diverges earlier": one-sided sign tests both ways."""
        total = self.earlier + self.later
        if total and at_least(self.earlier, total, 0.5) <= LEVEL:
            return Word.AGREES
        lost = total and at_least(self.later, total, 0.5) <= LEVEL
        return Word.CONTRADICTS if lost else Word.UNDECIDED


def signs(pairs: Iterable[tuple[Run[Any], Run[Any]]]) -> Signs:
    """Return the signs of paired runs."""
    both = [(first.time, second.time) for first, second in pairs]
    return Signs(sum(a < b for a, b in both), sum(a > b for a, b in both))


def above(dead: Sequence[float], alive: Sequence[float]) -> float:
    """Return the area under the ROC curve: how often one of the first is larger, ties half."""
    n, pairs = len(dead), len(dead) * len(alive)
    if not pairs:
        return math.nan
    return float((rankdata([*dead, *alive])[:n].sum() - n * (n + 1) / 2) / pairs)
