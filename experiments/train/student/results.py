"""The results of arms of the student: when a run has diverged, and functions of runs, `Run[Arm]`.

curve              (steps done, largest loss since the last entry, gradient norm), every 25 steps
extra["spikes"]    how many spikes began
extra["measures"]  (steps done, name -> number) of `measure`, as often as the config asks
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from roundscope.experiments.train import divergence
from roundscope.experiments.train.student.arms import EXACT, Arm
from roundscope.tools.results.run import Run

Result = Run[Arm]  # what came of one arm
Runs = Sequence[Result]
Measures = Sequence[tuple[int, Mapping[str, float]]]
RULE = (
    "A run has diverged at the first step where its loss is not finite, where the median of its"
    " last 100 losses that are no spikes is more than twice the lowest such median so far, or where"
    " a spike begins that lasts 100 steps, or 20 and to the run's end. A spike: three losses in a"
    " row whose logarithm is above the median by 8 times the spread."
)
# the loss is a mean square, so what counts is the factor by which it grows
DOUBLING = divergence.Rule(rise=math.log(2.0), logarithm=True, lasting=20)
Follow = partial(divergence.Follow, rule=DOUBLING)


def measures(run: Result) -> Measures:
    """Return what was measured during the run; empty where nothing was."""
    found: Measures = run.extra.get("measures", ())
    return found


def before(run: Result, name: str) -> float:
    """Return the median of a measure before the run diverged, NaN without any."""
    looks = [each[name] for step, each in measures(run) if step <= run.time and name in each]
    finite = [x for x in looks if math.isfinite(x)]
    return float(np.median(finite)) if finite else math.nan


def measured(runs: Iterable[Result]) -> list[str]:
    """Return the names of what was measured, in their order."""
    return list(dict.fromkeys(name for r in runs for _, each in measures(r) for name in each))


def of_arms(runs: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the runs by the arm's name, in their order."""
    found: dict[str, list[Result]] = {}
    for r in runs:
        found.setdefault(r.condition.name, []).append(r)
    return found


def paired(first: Iterable[Result], second: Iterable[Result]) -> list[tuple[Result, Result]]:
    """Return the runs of two arms with the same seed and rate, so on the same rows and weights."""
    other = {(r.seed, r.condition.lr): r for r in second}
    return [(r, other[at]) for r in first if (at := (r.seed, r.condition.lr)) in other]


def lone(runs: Sequence[Result]) -> list[str]:
    """Return the arms that diverged with a seed with which FP32 at the same rate did not."""
    arms = of_arms(runs)
    exact = arms.pop(EXACT, [])

    def fails(r: Result, e: Result) -> bool:
        return r.diverged is not None and e.diverged is None

    return [name for name, own in arms.items() if any(fails(r, e) for r, e in paired(own, exact))]


def over(own: Sequence[Result], runs: Iterable[Result]) -> float:
    """Return the final loss over FP32's of the same seed and rate: the geometric mean of `own`.

    `runs` holds FP32's. Infinite where one is not finite or missing.
    """
    exact = [r for r in runs if r.condition.name == EXACT]
    ratios = [r.loss / e.loss for r, e in paired(own, exact)]
    if len(ratios) < len(own) or not all(map(math.isfinite, ratios)):
        return math.inf
    return float(np.exp(np.mean(np.log(ratios))))
