"""Sends batches to workers and results to the file, and handles the death of a worker."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import AbstractContextManager
from typing import Any

from roundscope.tools.errors import ExecutorError, one_line
from roundscope.tools.sweep.conditions.cell import Cell, Result
from roundscope.tools.sweep.measuring.batches import Batch
from roundscope.tools.sweep.running.executors import is_death
from roundscope.tools.sweep.running.pool import Crew, hello

Measure = Callable[[Sequence[Cell]], list[Result]]
# makes a crew; its argument says whether one worker is enough
Opened = Callable[[bool], AbstractContextManager[Crew]]

AHEAD = 2  # batches under way per worker, so that the next one is there when one is done
_POLL = 0.5  # seconds between checks for Ctrl-C and of the workers


class Dispatch:
    """Measures batches on crews and saves each as it comes back; every cell ends as one saved row.

    opened    makes a crew, a new one after each that broke
    save      is given a batch and its results
    stop      returns whether no more is wanted
    """

    def __init__(
        self,
        measure: Measure,
        opened: Opened,
        save: Callable[[Batch, list[Result]], None],
        stop: Callable[[], bool],
    ) -> None:
        self.measure, self.opened, self.save, self.stop = measure, opened, save, stop
        self.queue: deque[Batch] = deque()
        self.suspects: deque[Batch] = deque()  # batches that were under way when a worker died

    def all(self, batches: Iterable[Batch]) -> None:
        """Measure every cell.

        Raises KeyboardInterrupt if `stop` says so, with all that has arrived saved.
        """
        self.queue.extend(batches)
        while self.queue:
            self._together()
        alone = deque([cell] for batch in self.suspects for cell in batch)
        self.suspects.clear()
        while alone:
            self._alone(alone)

    def _together(self) -> None:
        """Work on the queue until it is done or the crew breaks.

        What was under way then is suspect.
        """
        flying: dict[Future[list[Result]], Batch] = {}
        with self.opened(False) as crew:
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
        """Save what came back.

        A batch that raised is sent again cell by cell; one whose worker died is suspect.
        """
        error = _error_of(future)
        if error is None:
            self.save(batch, future.result())
        elif is_death(error):
            self.suspects.append(batch)
        elif len(batch) > 1:
            self.queue.extendleft([cell] for cell in reversed(batch))
        else:
            self.save(batch, [_failed(batch[0], f"{type(error).__name__}: {one_line(error)}")])

    def _leave(self, flying: dict[Future[list[Result]], Batch]) -> None:
        """Save what has arrived and cancel the rest."""
        for future, batch in flying.items():
            if not future.cancel() and future.done():
                self._take(future, batch)
        raise KeyboardInterrupt

    def _alone(self, cells: deque[Batch]) -> None:
        """Measure one suspect cell at a time until the crew breaks, which shows who broke it."""
        with self.opened(True) as crew:
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
                self.save(batch, [_failed(batch[0], why)])
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


def _failed(cell: Cell, error: str) -> Result:
    return Result(key=cell.key, error=error)
