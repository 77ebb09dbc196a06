"""Results that were made up, for tests of what is concluded from results."""

import math
from collections.abc import Sequence

from roundscope.experiments.studies.failure.results import Result, Results
from roundscope.experiments.studies.failure.trials import Entry, Trial


def run(case: str, row: str, seed: int, *, diverged: int | None = None, drift: float = 0.0, **more: object) -> tuple[Entry, Result]:
    """One run; its changes are its place in the table, so that no two are the same."""
    trial = Trial(changes=(f"{case} {row}",), tiles=1, steps=1000, seed=seed)
    loss = 1.5 if diverged is None else math.nan
    curve = ((0, math.nan, 1.0), (25, 2.0, 1.5))
    found = {"norm": 3.0, "heads": ((1.0, 2.0), (3.0, 1.0)), "rest": (((drift, drift, 1.0),),), "loss": loss, "curve": curve} | more
    result = Result(trial=trial, diverged=diverged, **found)  # type: ignore[arg-type]
    return Entry(case=case, row=row, trial=trial), result


def results(table: dict[tuple[str, str], Sequence[int | None]], **more: object) -> Results:
    """Results of (case, row) -> the steps at which its seeds diverged."""
    runs = [run(*place, seed, diverged=step, **more) for place, steps in table.items() for seed, step in enumerate(steps)]  # type: ignore[arg-type]
    return Results([entry for entry, _ in runs], {result.trial: result for _, result in runs})
