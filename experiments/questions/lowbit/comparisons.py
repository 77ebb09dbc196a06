"""Losses of runs of one seed compared: which recipes, at which rates, and what is in a mean."""

import math
from collections.abc import Mapping

import numpy as np

from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.questions.lowbit.recipes import BF16, FP32, NONE, RECIPES
from roundscope.experiments.questions.lowbit.trainings import Results, Runs

MARGIN = 0.02  # nats within which two losses count as equal, set before the runs
TITLES = {BF16: "BF16", FP32: "FP32"} | {name: r.title for name, r in RECIPES.items()}


def rates(r: Results) -> list[float]:
    """Return the rates of the results, in their order."""
    return list(dict.fromkeys(rate for _, _, rate in r))


def recipes(r: Results) -> list[str]:
    """Return the recipes of the results, without references."""
    return [name for name in RECIPES if any(name == key[0] for key in r)]


def gaps(runs: Runs, others: Runs) -> dict[int, float]:
    """Return the loss of the first runs less that of the others, by seed, NaN where one is NaN."""
    losses = {run.seed: run.loss for run in others}
    return {run.seed: run.loss - losses[run.seed] for run in runs if run.seed in losses}


def above_bf16(r: Results, recipe: str, rate: float, cure: str) -> dict[int, float]:
    """Return the loss above BF16's, by seed."""
    return gaps(r.get((recipe, cure, rate), []), r.get((BF16, NONE, rate), []))


def told(values: Mapping[int, float]) -> str:
    """Return a mean with its interval and n, those that are not finite first."""
    lost = sum(not math.isfinite(x) for x in values.values())
    first = f"{lost} of {len(values)} not finite; " if lost else ""
    return f"{first}{interval(mean(values))} (n = {len(values) - lost})"


def is_calm(*runs: Runs) -> bool:
    """Return whether none of the runs diverged and all losses are finite."""
    return all(r.diverged is None and math.isfinite(r.loss) for each in runs for r in each)


def pooled(r: Results, rate: float, cure: str, other: str) -> tuple[dict[int, float], int]:
    """Return by seed the mean difference of recipes that did not diverge, and their number."""
    each = []
    for name in recipes(r):
        own, others = (r.get((name, x, rate), []) for x in (cure, other))
        if own and others and is_calm(own, others):
            each.append(gaps(own, others))
    seeds = sorted(set.intersection(*(set(x) for x in each))) if each else []
    return {seed: float(np.mean([x[seed] for x in each])) for seed in seeds}, len(each)
