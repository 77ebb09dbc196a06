"""The loop of a sweep: measures and saves what is missing, and returns what happened.

Batches are sent to workers and results to the file, and the death of a worker is handled.
"""

import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from roundscope.tools.errors import ExecutorError, bad, one_line
from roundscope.tools.report.progress import SECONDS, WHAT, drawn, every_line, left
from roundscope.tools.report.terminal import console
from roundscope.tools.signals import stopping
from roundscope.tools.sweep.conditions.cell import Cell, Result
from roundscope.tools.sweep.running.executors import Crew, cores, executor_for, hello, is_death
from roundscope.tools.sweep.storage.store import Store

Batch = list[Cell]
Measure = Callable[[Sequence[Cell]], list[Result]]
# called with the number of cells measured, of failed ones among them, and of cells to measure
Progress = Callable[[int, int, int], None]

AHEAD = 2  # batches under way per worker, so that the next one is there when one is done
_POLL = 0.5  # seconds between checks for Ctrl-C and of the workers


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
    progress: Progress = lambda done, failed, total: None,
) -> Outcome:
    """Measure the cells that the store does not have, and save them as they come.

    Cells whose key is 'ok' are skipped, failed ones too unless `retry_failed`. Ctrl-C or SIGTERM
    saves what has arrived and returns; a second one stops at once. A cell whose measurement raises
    or kills its worker becomes a failed row. Raises StorageError if the file cannot be written,
    ExecutorError if workers cannot start or are gone, UsageError for jobs below 1 and for an
    executor that is none; what was saved stays.

    On this machine engines run one after another: xla has all cores, or the GPU, in one process.
    """
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    began, unique = time.perf_counter(), {cell.key: cell for cell in cells}
    from roundscope.tools.sweep.measuring import measure as measuring

    held = store.statuses(unique)
    missing = [
        c
        for key, c in unique.items()
        if key not in held or (retry_failed and held[key] == "failed")
    ]
    tally = _Tally(store, len(missing), progress)
    interrupted = 0
    with stopping() as stop:
        try:
            for engine in ("numpy", "xla") if executor is None else (None,):
                part = [c for c in missing if engine in (None, c["engine"])]
                workers = 1 if engine == "xla" else jobs or cores()
                work = measuring.batches(part, workers)
                wanted = jobs if executor is not None else min(workers, len(work))
                Dispatch(measure or measuring.measure, executor, wanted, tally.save, stop).all(work)
        except KeyboardInterrupt:
            interrupted = stop() or signal.SIGINT
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


class Dispatch:
    """Measures batches on crews and saves each as it comes back; every cell ends as one saved row.

    executor, workers   of crews, a new one after each that broke: as `executor_for` takes them
    save                is given a batch and its results
    stop                returns a number other than 0 when no more is wanted
    """

    def __init__(
        self,
        measure: Measure,
        executor: str | None,
        workers: int | None,
        save: Callable[[Batch, list[Result]], None],
        stop: Callable[[], int],
    ) -> None:
        self.measure, self.save, self.stop = measure, save, stop
        self.executor, self.workers = executor, workers
        self.queue: deque[Batch] = deque()
        self.suspects: deque[Batch] = deque()  # batches that were under way when a worker died

    def all(self, batches: Iterable[Batch]) -> None:
        """Measure every cell. Raises KeyboardInterrupt if `stop` says so, what arrived saved."""
        self.queue.extend(batches)
        while self.queue:
            self._together()
        alone = deque([cell] for batch in self.suspects for cell in batch)
        self.suspects.clear()
        while alone:
            self._alone(alone)

    def _together(self) -> None:
        """Work on the queue until it is done or the crew breaks, which makes what runs suspect."""
        flying: dict[Future[list[Result]], Batch] = {}
        with executor_for(self.executor, self.workers) as crew:
            self._greet(crew)
            while self.queue or flying:
                whole = self._send(crew, flying)
                arrived, _ = wait(flying, _POLL, FIRST_COMPLETED)
                for future in [f for f in flying if f in arrived]:  # in the order of sending
                    self._take(future, flying.pop(future))
                if self.stop():
                    self._leave(flying)
                if not whole and not flying:
                    return

    def _send(self, crew: Crew, flying: dict[Future[list[Result]], Batch]) -> bool:
        """Keep every worker busy; return False if the crew is broken."""
        room = AHEAD * max(1, crew.workers())  # asked each time: raises if a cluster is gone
        while self.queue and len(flying) < room:
            try:
                future = crew.executor.submit(self.measure, self.queue[0])
            except BrokenExecutor:
                return False
            flying[future] = self.queue.popleft()
        return True

    def _take(self, future: Future[list[Result]], batch: Batch) -> None:
        """Save a batch; one that raised is sent again cell by cell, a dead worker's is suspect."""
        error = _error_of(future)
        if error is None:
            self.save(batch, future.result())
        elif is_death(error):
            self.suspects.append(batch)
        elif len(batch) > 1:
            self.queue.extendleft([cell] for cell in reversed(batch))
        else:
            self.save(
                batch,
                [Result(key=batch[0].key, error=f"{type(error).__name__}: {one_line(error)}")],
            )

    def _leave(self, flying: dict[Future[list[Result]], Batch]) -> None:
        """Save what has arrived and cancel the rest."""
        for future, batch in flying.items():
            if not future.cancel() and future.done():
                self._take(future, batch)
        raise KeyboardInterrupt

    def _alone(self, cells: deque[Batch]) -> None:
        """Measure one suspect cell at a time until the crew breaks, which shows who broke it."""
        with executor_for(self.executor, self.workers if self.executor else 1) as crew:
            self._greet(crew)
            while cells:
                try:
                    future = crew.executor.submit(self.measure, cells[0])
                except BrokenExecutor:  # died idle
                    return
                self._await(future, crew)
                batch, error = cells.popleft(), _error_of(future)
                if error is None or not is_death(error):
                    self._take(future, batch)
                    continue
                why = f"the worker died ({crew.death(error)}) measuring this cell alone"
                self.save(batch, [Result(key=batch[0].key, error=why)])
                if isinstance(error, BrokenExecutor):
                    return

    def _greet(self, crew: Crew) -> None:
        """Raise ExecutorError if no worker of the crew can start, or none finds this package."""
        future = crew.executor.submit(hello)
        self._await(future, crew)
        if error := _error_of(future):
            cause = f"{type(error).__name__}: {one_line(error)}"
            if is_death(error):
                cause = crew.death(error)
            raise ExecutorError(
                f"workers cannot start ({cause}); is roundscope installed for them?"
            ) from error

    def _await(self, future: Future[Any], crew: Crew) -> None:
        while not wait([future], _POLL).done:
            crew.workers()  # as above
            if self.stop():
                future.cancel()
                raise KeyboardInterrupt


def _error_of(future: Future[Any]) -> BaseException | None:
    if future.cancelled():
        raise ExecutorError(
            "the executor dropped its work: did its scheduler end? What arrived is saved; run again"
            " to go on"
        )
    return future.exception()


@contextmanager
def bar(name: str = "sweep", clock: Callable[[], float] = time.perf_counter) -> Iterator[Progress]:
    """Show a bar with cells per second, time left and failures; it disappears when done.

    Where stderr is no terminal, a line is printed every minute at most, which begins with the name.
    """
    if not console(stderr=True).is_terminal:
        tell, began = every_line(name, SECONDS, clock), clock()

        def line(done: int, failed: int, total: int) -> None:
            words = _words(done, failed, total, clock() - began)
            tell(f"{done} of {total} cells, {words}")

        yield line
        return
    with drawn(name, "bar", "count", "elapsed", WHAT, width=40) as shown:
        task, start = shown.add_task("", total=None), time.perf_counter()

        def progress(done: int, failed: int, total: int) -> None:
            shown.update(
                task,
                completed=done,
                total=total,
                description=_words(done, failed, total, time.perf_counter() - start),
            )

        yield progress


def _words(done: int, failed: int, total: int, seconds: float) -> str:
    """Return the mean rate since the start of the workers, the time left, and failures."""
    if not done:
        return "starting"
    rate = done / seconds
    fails = f", {failed} failed" if failed else ""
    return f"{rate:.3g} cells/s, {left(total - done, rate)}{fails}"
