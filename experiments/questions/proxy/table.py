"""Every arm of `roundscope proxy` with its numbers, for the page, the terminal and the JSON."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.experiments.framework.counts import times
from roundscope.experiments.framework.study import Table
from roundscope.experiments.train.student.arms import Arm
from roundscope.experiments.train.student.results import before, measured, of_arms, over
from roundscope.tools.results.run import Run

Runs = Sequence[Run[Arm]]
NOTES = (
    "Weights and Adam's moments are FP32 in every arm; arms of one seed have the same first "
    "weights, teacher and rows. zeta and cosine compare two gradients at the same weights and "
    "rows, so that the distance of two trainings is not in them. gamma last and distinct: in the "
    "format of the activations, how many of LayerNorm's scales become the largest element, and how "
    "many different numbers a block of 32 keeps. Medians over the run before it diverged, then "
    "over seeds."
)
MEASURES = {"zeta": ".3g", "cosine": ".4f", "gamma_last": ".1%", "gamma_distinct": ".1f"}


def records(runs: Runs) -> list[dict[str, Any]]:
    """Return a record for each arm."""
    return [
        {
            "name": name,
            "lr": own[0].condition.lr,
            "changes": own[0].condition.changes,
            "runs": len(own),
            "seeds": [r.seed for r in own],
            "diverged": [r.diverged for r in own],
            "spikes": [r.extra["spikes"] for r in own],
            "losses": [r.loss for r in own],
            "over_fp32": over(own, runs),
            "measures": {n: _middle(own, n) for n in measured(own)},
        }
        for name, own in of_arms(runs).items()
    ]


def rows(runs: Runs) -> list[list[str]]:
    """Return the same in words: the columns of TABLE."""
    return [_row(name, own, runs) for name, own in of_arms(runs).items()]


def _row(name: str, own: Runs, runs: Runs) -> list[str]:
    finite = [r.loss for r in own if math.isfinite(r.loss)]
    lost = len(own) - len(finite)
    changes = own[0].condition.changes
    return [
        name,
        "; ".join(f"{step}: {text}" if step else text for step, text in changes),
        times(own),
        str(sum(r.extra["spikes"] for r in own)),
        f"{lost} not finite" if lost else f"{np.median(finite):.2e}",
        _shown(over(own, runs), ".3g"),
        *(_shown(_middle(own, n), how) for n, how in MEASURES.items()),
    ]


def _shown(x: float, how: str) -> str:
    return format(x, how) if math.isfinite(x) else ""


def _middle(own: Runs, name: str) -> float:
    numbers = [x for x in (before(r, name) for r in own) if math.isfinite(x)]
    return float(np.median(numbers)) if numbers else math.nan


TABLE = Table(
    name="arms",
    title="Every arm",
    heads=(
        *("arm", "changes", "diverged, step", "spikes", "final loss", "over FP32"),
        *("zeta", "cosine", "gamma\nlast", "gamma\ndistinct"),
    ),
    rows=rows,
    records=records,
    note=NOTES,
    shown=(0, 2, 3, 4, 5, 6, 7),
)
