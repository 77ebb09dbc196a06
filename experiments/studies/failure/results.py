"""What came of trials: `Result` of a run, and `Results` by case and row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roundscope.experiments.studies.failure.rows import FAILS, FP32
from roundscope.experiments.studies.failure.trials import Entry, Trial
from roundscope.experiments.studies.framework.estimates import Estimate, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run.

    diverged      the step at which it did (`spikes.RULE`), None if it did not: censored at trial.steps
    loss          mean of the last 50 losses in nats; NaN if it diverged
    norm, heads   largest ||W_Q,h||_2 up to divergence; those of layers and heads at the last look before it
    rest          |sum R|, sum |R|, sum |dW_Q| of layers and heads, after the warm-up (`rest`)
    curve         (steps done, mean loss since the last entry, largest ||W_Q,h||_2), every 25 steps from 0
    """

    trial: Trial
    diverged: int | None
    loss: float
    norm: float
    heads: tuple[tuple[float, ...], ...]
    rest: tuple[tuple[tuple[float, ...], ...], ...]
    curve: tuple[tuple[int, float, float], ...]

    @property
    def share(self) -> float:
        """Of the rest of dS in the gradient of W_Q: sum |R| / sum |dW_Q|, over looks and heads."""
        return _ratio(self.rest, 1, 2)

    @property
    def steady(self) -> float:
        """|sum R| / sum |R|: how far R points one way."""
        return _ratio(self.rest, 0, 1)

    @property
    def drift(self) -> float:
        """share x steady: |sum R| / sum |dW_Q|, what the rest puts into W_Q in one direction."""
        return _ratio(self.rest, 0, 2)


def _ratio(rest: Sequence[Sequence[Sequence[float]]], over: int, under: int) -> float:
    heads = [head for row in rest for head in row]
    total = sum(head[under] for head in heads)
    return sum(head[over] for head in heads) / total if total else math.nan


class Results:
    """Results by (case, row), in the order of seeds."""

    def __init__(self, entries: Sequence[Entry], found: Mapping[Trial, Result]) -> None:
        self.by: dict[tuple[str, str], list[Result]] = {}
        for entry in entries:
            if entry.trial in found:
                self.by.setdefault((entry.case, entry.row), []).append(found[entry.trial])
        self._fp32 = {r.trial.seed: r for (_, row), own in self.by.items() if row == FP32 for r in own}

    def of(self, case: str, row: str) -> list[Result]:
        """Empty where the row was not run."""
        return self.by.get((case, row), [])

    def rows(self, case: str) -> list[str]:
        """The names of the rows of a case that were run."""
        return [row for own, row in self.by if own == case]

    def excess(self, case: str, own: Sequence[Result]) -> Estimate:
        """Final loss above the case's FP32 arm of the same seed, nats, of the runs that did not diverge and ran as long."""
        exact = {r.trial.seed: r for r in self.of(case, FP32)}
        pairs = {r.trial.seed: (r, exact[r.trial.seed]) for r in own if r.trial.seed in exact}
        return mean({seed: r.loss - e.loss for seed, (r, e) in pairs.items() if r.trial.steps == e.trial.steps})

    def fails(self, case: str) -> bool:
        """Whether every run of the case diverged and no FP32 run did: what a repair is measured against."""
        base, exact = self.of(case, FAILS), self.of(case, FP32)
        return bool(base and exact) and all(r.diverged is not None for r in base) and all(r.diverged is None for r in exact)


def diverged(own: Sequence[Result]) -> int:
    """How many did."""
    return sum(r.diverged is not None for r in own)


def times(own: Sequence[Result]) -> str:
    """k of n, and the median step and range of those that diverged."""
    seen = [r.diverged for r in own if r.diverged is not None]
    count = f"{len(seen)} of {len(own)}"
    return f"{count}, step {np.median(seen):.0f} [{min(seen)}, {max(seen)}]" if seen else count


def middle(values: Sequence[float]) -> float:
    """The median of the finite ones, NaN without any."""
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else math.nan
