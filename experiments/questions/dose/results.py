"""The results of doses: points, their exact arms, and what the series of a run say.

A run's curve has (steps done, mean loss since the last entry, largest ||W_Q,h||_2), every 25 steps
from 0. extra["shares"] has (steps done, mean over heads, largest of a head) of the share of rows
with several P = 1 (`ties`); it is empty if they were not counted.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.tools.results.run import Run

Point = tuple[Site | None, RoundingMode, int, float]  # event, mode, bits, rate


def growth(run: Run[Dose]) -> float:
    """Return the largest finite ||W_Q,h||_2 of the run over that of its first weights."""
    norms = [norm for _, _, norm in run.curve if math.isfinite(norm)]
    return max(norms) / norms[0]


def ties(run: Run[Dose]) -> float:
    """Return the mean share of rows with several P = 1 before the run diverged.

    NaN if none was counted.
    """
    found = [mean for step, mean, _ in run.extra["shares"] if step <= run.time]
    return float(np.mean(found)) if found else math.nan


class Results:
    """All results of a scale, by point."""

    def __init__(self, results: Iterable[Run[Dose]]) -> None:
        self.all = list(results)
        self.points: dict[Point, list[Run[Dose]]] = {}
        for r in self.all:
            self.points.setdefault(
                (r.condition.site, r.condition.mode, r.condition.bits, r.condition.rate), []
            ).append(r)
        self._exact = {r.condition: r for r in self.all if r.condition == r.condition.exact}

    def series(self, site: Site, mode: RoundingMode, rate: float) -> dict[int, list[Run[Dose]]]:
        """Return bits -> results, in the order of bits."""
        found = {
            p: own for (s, m, p, lr), own in self.points.items() if (s, m, lr) == (site, mode, rate)
        }
        return dict(sorted(found.items()))

    def panels(self) -> list[tuple[Site, float]]:
        """Return the pairs of event and rate that were measured, in their order."""
        return list(
            dict.fromkeys((site, rate) for site, _, _, rate in self.points if site is not None)
        )

    def modes(self) -> list[RoundingMode]:
        """Return the modes that were measured, in the order of RoundingMode."""
        found = {mode for site, mode, _, _ in self.points if site is not None}
        return [mode for mode in RoundingMode if mode in found]

    def exact(self, result: Run[Dose]) -> Run[Dose]:
        """Return the exact arm of the same rate, steps and seed."""
        return self._exact[result.condition.exact]

    def excess(self, results: Sequence[Run[Dose]]) -> Estimate:
        """Return the final loss above the exact arm's in nats, over pairs of finite losses."""
        return mean({r.condition.seed: r.loss - self.exact(r).loss for r in results})

    def growth(self, results: Sequence[Run[Dose]]) -> Estimate:
        """Return log2 of the growth of ||W_Q|| over the exact arm's, a mean over seeds."""
        return mean(
            {r.condition.seed: math.log2(growth(r) / growth(self.exact(r))) for r in results}
        )
