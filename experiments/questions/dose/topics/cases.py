"""Studies that are a list of cases.

`Case` is a row of the table, `Topic` the question, `Found` the results.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from matplotlib.figure import Figure

from roundscope.experiments.framework.counts import Time, time_of
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.framework.words import pairs
from roundscope.experiments.questions.dose.arms import Dose, with_exact
from roundscope.experiments.questions.dose.results import Results, growth, ties
from roundscope.experiments.questions.dose.scale import OWN, steps_of
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.settings import typed
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

HEADS = (
    "group",
    "case",
    "diverged",
    "final loss, nats",
    "above exact",
    "log2 growth of\n||W_Q|| over exact",
    "rows with\nseveral P = 1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row: its group, its name, and its dose with seed 0."""

    group: str
    name: str
    dose: Dose


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A question with cases, each of them with every seed.

    Each case also has the exact arm, unless `alone`.

    answer   gives one sentence
    draw     draws the picture that opens the report
    caption  its caption
    notes    what else the reader must know
    about    what differs, in words
    ties     whether rows with several P = 1 are counted
    """

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
        """Return the topic with KEY=VALUE words over it: steps=, and settings of the model.

        Raises UsageError naming key, value and repair.
        """
        known = ("steps", *(f.name for f in fields(Config) if f.name not in OWN))
        asked = pairs(words, known)
        steps = steps_of("steps", asked.pop("steps")) if "steps" in asked else None
        for case in self.cases:
            if fixed := [w for w in case.dose.words if w.partition("=")[0] in asked]:
                raise UsageError(
                    f"{fixed[0].partition('=')[0]}: the case '{case.name}' has {fixed[0]} of its"
                    " own; leave it out"
                )
        config = replace(self.config, **{name: typed(name, value) for name, value in asked.items()})
        cases = self.cases
        if steps is not None:
            cases = tuple(replace(c, dose=replace(c.dose, steps=steps)) for c in cases)
        return replace(self, config=config, cases=cases, seeds=seeds or self.seeds)


class Found:
    """The results of a topic, by case in its order."""

    def __init__(self, topic: Topic, results: Iterable[Run[Dose]]) -> None:
        self.topic, self.results = topic, Results(results)
        by_dose = {r.condition: r for r in self.results.all}
        self.cases: dict[Case, list[Run[Dose]]] = {
            c: [by_dose[replace(c.dose, seed=s)] for s in topic.seeds] for c in topic.cases
        }

    def groups(self) -> dict[str, dict[Case, list[Run[Dose]]]]:
        """Return the cases by group, in their order."""
        groups: dict[str, dict[Case, list[Run[Dose]]]] = {}
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

    def exact(self, case: Case) -> list[Run[Dose]]:
        """Return the exact arm of each seed."""
        return [self.results.exact(r) for r in self.cases[case]]


def rows(found: Found) -> list[list[str]]:
    """Return a row per case, in words; the columns are those of HEADS."""
    lines = []
    for case, runs in found.cases.items():
        loss = mean({run.condition.seed: run.loss for run in runs})
        lost = sum(not math.isfinite(run.loss) for run in runs)
        against = ["", ""]
        if not found.topic.alone and case.dose != case.dose.exact:
            against = [interval(found.results.excess(runs)), interval(found.results.growth(runs))]
        tied = mean({run.condition.seed: ties(run) for run in runs}).mean
        share = "" if math.isnan(tied) else f"{100 * tied:.3g} %"
        losses = interval(loss) + (f", {lost} not finite" if lost else "")
        lines.append([case.group, case.name, found.time(case).words, losses, *against, share])
    return lines


def points(found: Found) -> list[dict[str, Any]]:
    """Return a row per case, as data."""
    records = []
    for case, own in found.cases.items():
        t = found.time(case)
        records.append(
            {
                "group": case.group,
                "case": case.name,
                "change": list(case.dose.change),
                "words": list(case.dose.words),
                "offset": case.dose.offset,
                "lr": case.dose.rate,
                "steps": t.steps,
                "runs": t.runs,
                "diverged": t.diverged,
                "times": [run.diverged for run in own],
                "seeds": [run.condition.seed for run in own],
                "losses": [run.loss for run in own],
                "growth": [growth(run) for run in own],
                "several_ones": [ties(run) for run in own],
            }
        )
    return records


def of(t: Time) -> str:
    """Return "n of N", the number of runs that diverged."""
    return f"{t.diverged} of {t.runs}"


def most_ties(own: Iterable[Run[Dose]]) -> float:
    """Return the largest share of rows with several P = 1 of some runs, 0 if none was counted."""
    return max((share for r in own if math.isfinite(share := ties(r))), default=0.0)
