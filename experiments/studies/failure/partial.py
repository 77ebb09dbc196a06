"""What of a run that was interrupted can be told."""

from collections.abc import Collection, Sequence

from roundscope.experiments.studies.failure.rows import FAILS, FP32
from roundscope.experiments.studies.failure.trials import Entry, Trial


def whole(wanted: Sequence[Entry], found: Collection[Trial]) -> list[Entry]:
    """The entries of rows that are complete, in cases whose first two rows are. Rows that are judged together (layers, heads, the
    factorial: their names begin with the same word) are complete together.
    """
    missing = {_place(e) for e in wanted if e.trial not in found}
    cases = {e.case for e in wanted if not {(e.case, FAILS), (e.case, FP32)} & missing}
    return [e for e in wanted if e.case in cases and _place(e) not in missing]


def _place(entry: Entry) -> tuple[str, str]:
    return entry.case, entry.row.partition(" ")[0]
