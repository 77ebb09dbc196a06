"""The results of doses: by point of a scale, or by case of a topic; and the tables of both.

A run's curve has (steps done, mean loss since the last entry, largest ||W_Q,h||_2), every 25 steps
from 0. extra["shares"] has (steps done, mean over heads, largest of a head) of the share of rows
with several P = 1 (`training.shares`); it is empty if they were not counted.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.counts import Time, time_of
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.framework.words import pairs
from roundscope.experiments.questions.dose.doses import (
    MODEL,
    Dose,
    steps_of,
    with_exact,
    with_words,
)
from roundscope.experiments.train.config import Config
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

Runs = list[Run[Dose]]
Point = tuple[Site | None, RoundingMode, int, float]  # event, mode, bits, rate
MODES = {
    RoundingMode.TIES_TO_EVEN: "nearest, ties to even",
    RoundingMode.TIES_TO_AWAY: "nearest, ties away",
    RoundingMode.STOCHASTIC: "stochastic",
    RoundingMode.TOWARD_ZERO: "toward zero",
    RoundingMode.AWAY_FROM_ZERO: "away from zero",
}
GROWTH = "log2 growth of\n||W_Q|| over exact"
POINT_HEADS = ("event", "mode", "p", "lr", "diverged", "final loss, nats", "above exact", GROWTH)
CASE_HEADS = (
    *("group", "case", "diverged", "final loss, nats", "above exact"),
    *(GROWTH, "rows with\nseveral P = 1"),
)


def growth(run: Run[Dose]) -> float:
    """Return the largest finite ||W_Q,h||_2 of the run over that of its first weights."""
    norms = [norm for _, _, norm in run.curve if math.isfinite(norm)]
    return max(norms) / norms[0]


def ties(run: Run[Dose]) -> float:
    """Return the mean share of rows with several P = 1 before divergence; NaN if not counted."""
    found = [mean for step, mean, _ in run.extra["shares"] if step <= run.time]
    return float(np.mean(found)) if found else math.nan


def mode_words(mode: RoundingMode) -> str:
    """Return a mode in words."""
    return MODES.get(mode, str(mode))


class Results:
    """All results of a scale, by point."""

    def __init__(self, results: Iterable[Run[Dose]]) -> None:
        self.all = list(results)
        self.points: dict[Point, Runs] = {}
        for r in self.all:
            c = r.condition
            self.points.setdefault((c.site, c.mode, c.bits, c.rate), []).append(r)
        self._exact = {r.condition: r for r in self.all if r.condition == r.condition.exact}

    def series(self, site: Site, mode: RoundingMode, rate: float) -> dict[int, Runs]:
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

    def excess(self, results: Runs) -> Estimate:
        """Return the final loss above the exact arm's in nats, over pairs of finite losses."""
        return mean({r.seed: r.loss - self.exact(r).loss for r in results})

    def growth(self, results: Runs) -> Estimate:
        """Return log2 of the growth of ||W_Q|| over the exact arm's, a mean over seeds."""
        return mean({r.seed: math.log2(growth(r) / growth(self.exact(r))) for r in results})


def numbers_of(runs: Runs) -> dict[str, Any]:
    """Return the numbers of a point's or a case's seeds, as data."""
    time = time_of(runs)
    return {
        "steps": time.steps,
        "runs": time.runs,
        "diverged": time.diverged,
        "times": [run.diverged for run in runs],
        "seeds": [run.seed for run in runs],
        "losses": [run.loss for run in runs],
        "growth": [growth(run) for run in runs],
    }


def words_of(r: Results, runs: Runs, *, has_exact: bool) -> list[str]:
    """Return when runs diverged, their loss, and loss and growth over the exact arms', in words."""
    lost = sum(not math.isfinite(run.loss) for run in runs)
    loss = interval(mean({run.seed: run.loss for run in runs}))
    against = [interval(r.excess(runs)), interval(r.growth(runs))] if has_exact else ["", ""]
    return [time_of(runs).words, loss + (f", {lost} not finite" if lost else ""), *against]


def _ordered(r: Results) -> list[tuple[Point, Runs]]:
    """Return the points by rate, the exact ones first, and their runs."""

    def place(item: tuple[Point, Runs]) -> tuple[Any, ...]:
        site, mode, bits, rate = item[0]
        return (rate, site is not None, str(site), str(mode), bits)

    return sorted(r.points.items(), key=place)


def point_records(r: Results) -> list[dict[str, Any]]:
    """Return a row per point, as data."""
    return [
        {
            "site": None if site is None else str(site),
            "mode": str(mode),
            "p": bits,
            "lr": rate,
            **numbers_of(own),
            "words": time_of(own).words,
        }
        for (site, mode, bits, rate), own in _ordered(r)
    ]


def point_rows(r: Results) -> list[list[str]]:
    """Return a row per point, in words; the columns are those of POINT_HEADS."""
    found = []
    for (site, mode, bits, rate), own in _ordered(r):
        name = ["exact", "", ""] if site is None else [str(site), mode_words(mode), str(bits)]
        found.append([*name, f"{rate:g}", *words_of(r, own, has_exact=site is not None)])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row: its group, its name, and its dose with seed 0."""

    group: str
    name: str
    dose: Dose


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A question with cases, each with every seed, and with its exact arm unless `alone`."""

    question: str
    config: Config
    cases: tuple[Case, ...]
    seeds: tuple[int, ...]
    answer: Callable[["Found"], str]
    draw: Callable[["Found"], Figure]
    caption: str
    notes: str
    about: str
    alone: bool = False
    ties: bool = False

    @property
    def doses(self) -> list[Dose]:
        """Every run, each once."""
        found = [replace(case.dose, seed=seed) for case in self.cases for seed in self.seeds]
        return list(dict.fromkeys(found)) if self.alone else with_exact(found)

    def given(self, words: Sequence[str], seeds: tuple[int, ...] | None) -> "Topic":
        """Return the topic with KEY=VALUE words over it: steps=, the model's. Raises UsageError."""
        asked = pairs(words, ("steps", *MODEL))
        steps = steps_of("steps", asked.pop("steps")) if "steps" in asked else None
        for case in self.cases:
            if fixed := [w for w in case.dose.words if w.partition("=")[0] in asked]:
                raise UsageError(
                    f"{fixed[0].partition('=')[0]}: the case '{case.name}' has {fixed[0]} of its"
                    " own; leave it out"
                )
        cases = self.cases
        if steps is not None:
            cases = tuple(replace(c, dose=replace(c.dose, steps=steps)) for c in cases)
        config = with_words(self.config, asked)
        return replace(self, config=config, cases=cases, seeds=seeds or self.seeds)


class Found:
    """The results of a topic, by case in its order."""

    def __init__(self, topic: Topic, results: Iterable[Run[Dose]]) -> None:
        self.topic, self.results = topic, Results(results)
        by_dose = {r.condition: r for r in self.results.all}
        self.cases: dict[Case, Runs] = {
            c: [by_dose[replace(c.dose, seed=s)] for s in topic.seeds] for c in topic.cases
        }

    def groups(self) -> dict[str, dict[Case, Runs]]:
        """Return the cases by group, in their order."""
        groups: dict[str, dict[Case, Runs]] = {}
        for case, runs in self.cases.items():
            groups.setdefault(case.group, {})[case] = runs
        return groups

    def time(self, case: Case) -> Time:
        """Return the steps to divergence of a case."""
        return time_of(self.cases[case])

    def killed(self, case: Case) -> bool:
        """Return whether more than half of the seeds diverged."""
        t = self.time(case)
        return 2 * t.diverged > t.runs

    def threshold(self, group: str) -> int | None:
        """Return p*, the most bits at which most seeds of a group diverged, or None."""
        lethal = (c.dose.bits for c in self.cases if c.group == group and self.killed(c))
        return max(lethal, default=None)


def case_rows(found: Found) -> list[list[str]]:
    """Return a row per case, in words; the columns are those of CASE_HEADS."""
    lines = []
    for case, runs in found.cases.items():
        has_exact = not found.topic.alone and case.dose != case.dose.exact
        words = words_of(found.results, runs, has_exact=has_exact)
        tied = mean({run.seed: ties(run) for run in runs}).mean
        share = "" if math.isnan(tied) else f"{100 * tied:.3g} %"
        lines.append([case.group, case.name, *words, share])
    return lines


def case_records(found: Found) -> list[dict[str, Any]]:
    """Return a row per case, as data."""
    return [
        {
            "group": case.group,
            "case": case.name,
            "change": list(case.dose.change),
            "words": list(case.dose.words),
            "offset": case.dose.offset,
            "lr": case.dose.rate,
            **numbers_of(runs),
            "several_ones": [ties(run) for run in runs],
        }
        for case, runs in found.cases.items()
    ]
