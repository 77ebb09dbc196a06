"""What came of doses: `Result` of a run, `Time` of the seeds of a point, and how points are picked."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from roundscope.attention.sites import Site
from roundscope.emu.rounding.modes import RoundingMode
from roundscope.experiments.studies.dose.arms import Dose
from roundscope.experiments.studies.framework.estimates import Estimate, mean

Point = tuple[Site | None, RoundingMode, int, float]  # event, mode, bits, rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run.

    diverged   the step at which it did (`spikes.RULE`), None if it did not: censored at dose.steps
    loss       mean of the last 50 losses in nats, NaN where one is not finite
    curve      (steps done, mean loss since the last entry, largest ||W_Q,h||_2), every 25 steps from 0
    shares     (steps done, mean over heads, largest of a head) of the share of rows with several P = 1 (`ties`); empty if not asked
    """

    dose: Dose
    diverged: int | None
    loss: float
    curve: tuple[tuple[int, float, float], ...]
    shares: tuple[tuple[int, float, float], ...] = ()

    @property
    def growth(self) -> float:
        """The largest finite ||W_Q,h||_2 of the run over that of its first weights."""
        norms = [norm for _, _, norm in self.curve if math.isfinite(norm)]
        return max(norms) / norms[0]

    @property
    def ties(self) -> float:
        """The mean of the shares, over heads and over the counts before the run diverged; NaN without any."""
        end = math.inf if self.diverged is None else self.diverged
        found = [mean for step, mean, _ in self.shares if step <= end]
        return float(np.mean(found)) if found else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Steps to divergence over seeds; infinite: longer than the runs, which took `steps`.

    low and high are the seeds' smallest and largest: they hold the median with probability 1 - 2^(1 - runs), 94 % for 5.
    """

    middle: float
    low: float
    high: float
    diverged: int
    runs: int
    steps: int

    @property
    def words(self) -> str:
        """n of N, and when."""
        if not self.diverged:
            return f"0 of {self.runs} in {self.steps} steps"
        show = lambda x: f"{x:.0f}" if math.isfinite(x) else f"> {self.steps}"  # noqa: E731
        return f"{self.diverged} of {self.runs}, median {show(self.middle)} [{show(self.low)}, {show(self.high)}]"


def time_of(results: Sequence[Result]) -> Time:
    """Of the seeds of one point."""
    x = np.array([math.inf if r.diverged is None else float(r.diverged) for r in results])
    return Time(
        middle=float(np.median(x)), low=float(x.min()), high=float(x.max()), diverged=int(np.isfinite(x).sum()), runs=x.size,
        steps=min(r.dose.steps for r in results),
    )  # fmt: skip


class Results:
    """All results of a scale, by point."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.all = list(results)
        self.points: dict[Point, list[Result]] = {}
        for r in self.all:
            self.points.setdefault((r.dose.site, r.dose.mode, r.dose.bits, r.dose.rate), []).append(r)
        self._exact = {r.dose: r for r in self.all if r.dose == r.dose.exact}

    def series(self, site: Site, mode: RoundingMode, rate: float) -> dict[int, list[Result]]:
        """Bits -> results, in the order of bits."""
        found = {p: own for (s, m, p, lr), own in self.points.items() if (s, m, lr) == (site, mode, rate)}
        return dict(sorted(found.items()))

    def panels(self) -> list[tuple[Site, float]]:
        """The (event, rate) that were measured, in their order."""
        return list(dict.fromkeys((site, rate) for site, _, _, rate in self.points if site is not None))

    def modes(self) -> list[RoundingMode]:
        """In the order of RoundingMode."""
        found = {mode for site, mode, _, _ in self.points if site is not None}
        return [mode for mode in RoundingMode if mode in found]

    def exact(self, result: Result) -> Result:
        """The exact arm of the same rate, steps and seed."""
        return self._exact[result.dose.exact]

    def excess(self, results: Sequence[Result]) -> Estimate:
        """Final loss above the exact arm's, nats: pairs of seeds, those whose losses are finite."""
        return mean({r.dose.seed: r.loss - self.exact(r).loss for r in results})

    def growth(self, results: Sequence[Result]) -> Estimate:
        """Growth of ||W_Q|| over the exact arm's: mean of log2 of it, pairs of seeds."""
        return mean({r.dose.seed: math.log2(r.growth / self.exact(r).growth) for r in results})
