"""Runs that were made up, for tests of what is concluded from runs."""

import math
from collections.abc import Sequence
from typing import Any

from roundscope.experiments.papers.failure_2510_04212.trials import FULL, Entry, Results, Trial
from roundscope.tools.results.run import Run


def run(
    case: str, row: str, seed: int, *, diverged: int | None = None, drift: float = 0.0, **more: Any
) -> tuple[Entry, Run[Trial]]:
    """One run; its changes are its place in the table, so that no two are the same."""
    trial = Trial(changes=(f"{case} {row}",), tiles=1, steps=1000, seed=seed)
    made = Run(
        condition=trial,
        steps=trial.steps,
        diverged=diverged,
        loss=1.5 if diverged is None else math.nan,
        curve=((0, math.nan, 1.0), (25, 2.0, 1.5)),
        extra={"norm": 3.0, "heads": ((1.0, 2.0), (3.0, 1.0)), "rest": (((drift, drift, 1.0),),)}
        | more,
    )
    return Entry(case=case, row=row, trial=trial), made


def gathered(runs: Sequence[tuple[Entry, Run[Trial]]]) -> Results:
    """Results of runs in their places."""
    return Results(FULL, [entry for entry, _ in runs], {made.condition: made for _, made in runs})


def results(table: dict[tuple[str, str], Sequence[int | None]], **more: Any) -> Results:
    """Results of (case, row) -> the steps at which its seeds diverged."""
    return gathered(
        [
            run(*place, seed, diverged=step, **more)
            for place, steps in table.items()
            for seed, step in enumerate(steps)
        ]
    )
