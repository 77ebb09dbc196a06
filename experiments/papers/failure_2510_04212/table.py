"""Every row of every case with its numbers, for the page and the JSON."""

from collections.abc import Sequence
from typing import Any

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.study import Table
from roundscope.experiments.framework.verdicts import interval, number
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import chosen_rows
from roundscope.experiments.papers.failure_2510_04212.drift import share, steady
from roundscope.experiments.papers.failure_2510_04212.results import Own, Results, middle

PICKED = "O path FP32 in half of all heads"  # rows that no scale lists: `heads.chosen`


def records(r: Results) -> list[dict[str, Any]]:
    """Return a record per case and row."""
    words = _words(r)
    return [
        {
            "case": case,
            "row": row,
            "words": words.get((case, row), PICKED),
            **_record(own, r.changes[case, row]),
        }
        for (case, row), own in r.by.items()
    ]


def _record(own: Own, changes: Sequence[str]) -> dict[str, Any]:
    first = own[0].condition
    return {
        "changes": list(changes),
        "tiles": first.tiles,
        "steps": first.steps,
        "runs": len(own),
        "diverged": diverged(own),
        "times": [run.diverged for run in own],
        "seeds": [run.seed for run in own],
        "losses": [run.loss for run in own],
        "norms": [run.extra["norm"] for run in own],
        "shares": [share(run) for run in own],
        "steadies": [steady(run) for run in own],
    }


def rows(r: Results) -> list[list[str]]:
    """Return a line per case and row, in words."""
    words = _words(r)
    return [
        [case, row, words.get((case, row), PICKED), times(own), *_numbers(r, case, own)]
        for (case, row), own in r.by.items()
    ]


def _numbers(r: Results, case: str, own: Own) -> list[str]:
    excess = r.excess(case, own)
    series = [run.extra["norm"] for run in own], [share(x) for x in own], [steady(x) for x in own]
    left = interval(excess) if excess.seeds else "-"
    return [left, *(number(middle(values)) for values in series)]


def _words(r: Results) -> dict[tuple[str, str], str]:
    cases = r.scale.cases
    return {(c.name, row.name): row.words for c in cases for row in chosen_rows(r.scale, c)}


TABLE = Table(
    name="rows",
    title="Every row",
    heads=(
        "case",
        "row",
        "what is different",
        "diverged",
        "loss above FP32, nats",
        "largest\n||W_Q||",
        "rest of dS:\nshare",
        "steady",
    ),
    rows=rows,
    records=records,
    note=(
        "Medians over seeds; loss: mean [95 %] of runs that did not diverge, against FP32 of the "
        "same seed and length."
    ),
)
