"""`Results`: the runs of the trials by case and row, and which parts of them are complete."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import FAILS, FP32
from roundscope.experiments.papers.failure_2510_04212.conditions.scale import Scale
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import Entry, Trial
from roundscope.tools.results.run import Run

Own = Sequence[Run[Trial]]  # the runs of one row, in the order of seeds


class Results:
    """Runs by (case, row).

    scale   the scale, with the cases of which some runs are stored
    by      (case, row) -> its runs, in the order of seeds; a run that rows share is the same in
            all of them, with the condition of the first
    changes (case, row) -> its changes of the preset
    """

    def __init__(
        self, scale: Scale, entries: Sequence[Entry], found: Mapping[Trial, Run[Trial]]
    ) -> None:
        self.by: dict[tuple[str, str], list[Run[Trial]]] = {}
        self.changes: dict[tuple[str, str], tuple[str, ...]] = {}
        for entry in entries:
            if entry.trial in found:
                self.by.setdefault((entry.case, entry.row), []).append(found[entry.trial])
                self.changes[entry.case, entry.row] = entry.trial.changes
        there = {case for case, _ in self.by}
        self.scale = replace(scale, cases=tuple(c for c in scale.cases if c.name in there))

    def of(self, case: str, row: str) -> list[Run[Trial]]:
        """Return the runs of a row; none where the row was not run."""
        return self.by.get((case, row), [])

    def rows(self, case: str) -> list[str]:
        """Return the names of the rows of a case that were run."""
        return [row for own, row in self.by if own == case]

    def excess(self, case: str, own: Own) -> Estimate:
        """Return the final loss above the case's FP32 run of the same seed, in nats.

        Only runs that did not diverge and ran as long count.
        """
        exact = {run.seed: run for run in self.of(case, FP32)}
        pairs = [(run, exact[run.seed]) for run in own if run.seed in exact]
        return mean({a.seed: a.loss - b.loss for a, b in pairs if a.steps == b.steps})

    def fails(self, case: str) -> bool:
        """Return whether every run of the case diverged and no FP32 run did.

        A repair is measured against such a case.
        """
        base, exact = self.of(case, FAILS), self.of(case, FP32)
        if not (base and exact):
            return False
        return all(r.diverged is not None for r in base) and all(r.diverged is None for r in exact)


def whole(wanted: Sequence[Entry], found: Collection[Trial]) -> list[Entry]:
    """Return the entries of rows that are complete, in cases whose first two rows are.

    Rows that are judged together (layers, heads, the factorial: their names begin with the same
    word) are complete together.
    """
    missing = {_place(e) for e in wanted if e.trial not in found}
    cases = {e.case for e in wanted if not {(e.case, FAILS), (e.case, FP32)} & missing}
    return [e for e in wanted if e.case in cases and _place(e) not in missing]


def _place(entry: Entry) -> tuple[str, str]:
    return entry.case, entry.row.partition(" ")[0]


def middle(values: Sequence[float]) -> float:
    """Return the median of the finite numbers, NaN without any."""
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else math.nan
