"""The table of points: every event, mode, number of bits and rate, with its seeds' numbers."""

import math
from collections.abc import Sequence
from typing import Any

from roundscope.experiments.framework.counts import time_of
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.questions.dose.results import Results, growth
from roundscope.experiments.questions.dose.words import mode_words

HEADS = (
    "event",
    "mode",
    "p",
    "lr",
    "diverged",
    "final loss, nats",
    "above exact",
    "log2 growth of\n||W_Q|| over exact",
)


def points(r: Results) -> list[dict[str, Any]]:
    """Return a row per point, as data."""
    found = []
    for (site, mode, bits, rate), own in sorted(r.points.items(), key=lambda item: _order(item[0])):
        time = time_of(own)
        found.append(
            {
                "site": None if site is None else str(site),
                "mode": str(mode),
                "p": bits,
                "lr": rate,
                "steps": time.steps,
                "runs": time.runs,
                "diverged": time.diverged,
                "times": [run.diverged for run in own],
                "seeds": [run.condition.seed for run in own],
                "losses": [run.loss for run in own],
                "growth": [growth(run) for run in own],
                "words": time.words,
            }
        )
    return found


def rows(r: Results) -> list[list[str]]:
    """Return a row per point, in words; the columns are those of HEADS."""
    found = []
    for (site, mode, bits, rate), own in sorted(r.points.items(), key=lambda item: _order(item[0])):
        loss = mean({run.condition.seed: run.loss for run in own})
        name = ["exact", "", ""] if site is None else [str(site), mode_words(mode), str(bits)]
        against = ["", ""] if site is None else [interval(r.excess(own)), interval(r.growth(own))]
        found.append(
            [*name, f"{rate:g}", time_of(own).words, interval(loss) + _lost(own), *against]
        )
    return found


def _lost(own: Sequence[Any]) -> str:
    lost = sum(not math.isfinite(run.loss) for run in own)
    return f", {lost} not finite" if lost else ""


def _order(point: Any) -> tuple[Any, ...]:
    site, mode, bits, rate = point
    return (rate, site is not None, str(site), str(mode), bits)
