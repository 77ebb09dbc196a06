"""The loop of a sweep: measures and saves what is missing, and returns what happened."""

import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

from roundscope.tools.errors import ExecutorError, bad
from roundscope.tools.signals import stopping
from roundscope.tools.sweep.conditions.cell import Cell, Result
from roundscope.tools.sweep.measuring.batches import Batch, batches
from roundscope.tools.sweep.running.dispatch import Dispatch, Measure
from roundscope.tools.sweep.running.executors import cores, executor_for
from roundscope.tools.sweep.running.pool import Crew
from roundscope.tools.sweep.running.progress import Progress, silent
from roundscope.tools.sweep.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a sweep.

    done     cells measured now;  skipped: cells that were there already
    failed   cells that failed now, or earlier and were not tried again
    seconds  the time that passed here;  interrupted: the signal that ended it, 0 for none
    parts    the workers' seconds by kind of work, added up
    """

    done: int
    failed: int
    skipped: int
    seconds: float
    interrupted: int
    parts: dict[str, float] = field(default_factory=dict)


def run(
    cells: Sequence[Cell],
    store: Store,
    *,
    jobs: int | None = None,
    executor: str | None = None,
    retry_failed: bool = False,
    measure: Measure | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Measure the cells that the store does not have, and save them as they come.

    Cells whose key is 'ok' are skipped, failed ones too unless `retry_failed`. Ctrl-C or SIGTERM
    saves what has arrived and returns; a second one stops at once. A cell whose measurement raises
    or kills its worker becomes a failed row. Raises StorageError if the file cannot be written,
    ExecutorError if workers cannot start or are gone, UsageError for jobs below 1 and for an
    executor that is none; what was saved stays.
    """
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    began, unique = time.perf_counter(), {cell.key: cell for cell in cells}
    held = store.statuses(unique)
    missing = [
        c
        for key, c in unique.items()
        if key not in held or (retry_failed and held[key] == "failed")
    ]
    tally = _Tally(store, len(missing), progress)
    interrupted = _measured(missing, measure or _default(), tally, jobs, executor)
    left_failed = sum(held.get(key) == "failed" for key in unique) if not retry_failed else 0
    skipped = sum(held.get(key) == "ok" for key in unique)
    return Outcome(
        done=tally.done,
        failed=tally.failed + left_failed,
        skipped=skipped,
        seconds=time.perf_counter() - began,
        interrupted=interrupted,
        parts=dict(tally.parts),
    )


def _default() -> Measure:
    from roundscope.tools.sweep.measuring.measure import measure

    return measure


class _Tally:
    """Saves results and counts them."""

    def __init__(self, store: Store, total: int, progress: Progress) -> None:
        self.store, self.total, self.progress = store, total, progress
        self.done = self.failed = 0
        self.parts: Counter[str] = Counter()
        progress(0, 0, total)

    def save(self, batch: Batch, results: list[Result]) -> None:
        """Save the results of a batch and count them.

        Raises ExecutorError for results that are not of these cells: a key holds the version of the
        numeric core.
        """
        if [r.key for r in results] != [cell.key for cell in batch]:
            raise ExecutorError(
                "a worker measured other cells than it was sent: install this version of roundscope"
                " on every worker"
            )
        self.store.save(list(zip(batch, results, strict=True)))
        self.failed += sum(r.error is not None for r in results)
        self.done += sum(r.error is None for r in results)
        for result in results:
            self.parts.update(result.parts)
        self.progress(self.done + self.failed, self.failed, self.total)


def _measured(
    missing: Sequence[Cell], measure: Measure, tally: _Tally, jobs: int | None, executor: str | None
) -> int:
    """Measure cells; return the signal that ended it, 0 for none.

    On this machine engines run one after another: xla has all cores, or the GPU, in one process.
    """
    engines = ("numpy", "xla") if executor is None else (None,)
    with stopping() as stop:
        try:
            for engine in engines:
                part = [c for c in missing if engine in (None, c["engine"])]
                workers = 1 if engine == "xla" else jobs or cores()
                work = batches(part, workers)
                wanted = jobs if executor is not None else min(workers, len(work))
                Dispatch(
                    measure, partial(_crew, executor, wanted), tally.save, lambda: bool(stop())
                ).all(work)
        except KeyboardInterrupt:
            return stop() or signal.SIGINT
    return 0


def _crew(executor: str | None, wanted: int | None, alone: bool) -> AbstractContextManager[Crew]:
    return executor_for(executor, 1 if alone and executor is None else wanted)
