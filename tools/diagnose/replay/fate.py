"""The outcome of replays: of one, and of all repeats of one change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Trial(NamedTuple):
    """A replay: a change of the arithmetic, as its model writes it, and the number of the repeat.

    Repeat 0 begins at the run's own bits, every other one with other last bits of the weights and
    other random bits.
    """

    change: Any
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The outcome of one replay.

    failed   the step at which it failed, None if it did not
    losses   (steps,) up to where it was decided
    """

    failed: int | None
    losses: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A set of exact events, and the fates of its repeats."""

    units: frozenset[Any]
    fates: tuple[Fate, ...]

    @property
    def failures(self) -> int:
        """The number of repeats that failed."""
        return sum(fate.failed is not None for fate in self.fates)

    @property
    def survives(self) -> bool:
        """Return whether all repeats survive.

        Sets are many, and one that survives by luck would pass for the cause.
        """
        return self.failures == 0

    @property
    def count(self) -> str:
        """The text "k of n": k of n repeats survive."""
        return f"{len(self.fates) - self.failures} of {len(self.fates)}"


def better(fates: Sequence[Fate], others: Sequence[Fate]) -> float:
    """Return p of Fisher's exact test, one-sided.

    It is the probability that replays survive this much more often than others if a change makes no
    difference.
    """
    from scipy.stats import fisher_exact

    table = [
        [sum(f.failed is None for f in x), sum(f.failed is not None for f in x)]
        for x in (fates, others)
    ]
    return float(fisher_exact(table, alternative="greater")[1])
