"""Worker processes on this machine.

Every worker imports this before anything else, so it imports nothing heavy.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from roundscope.tools.errors import one_line


@dataclass(frozen=True, slots=True)
class Crew:
    """An executor and its workers.

    executor  the executor;  workers: returns how many workers it has now (a cluster's come and go)
    death     returns how one of them died, from the error of its task
    """

    executor: Executor
    workers: Callable[[], int]
    death: Callable[[BaseException], str]


def hello() -> int:
    """Return the id of this process; every crew is asked for it first.

    It shows that a worker starts and finds this package.
    """
    return os.getpid()


class _Worker(SpawnProcess):
    """A process that Ctrl-C never reaches.

    A terminal sends it to the workers too, also to one that still imports.
    """

    def start(self) -> None:
        resource_tracker.ensure_running()  # started below, it would unblock what is blocked here
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()  # a new process inherits what is blocked
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Spawn(SpawnContext):
    """A context of fresh processes (a fork of a process with threads can hang).

    The processes are remembered, since how they died is asked afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]
        process = _Worker(*args, **options)
        self.started.append(process)
        return process

    def kill(self) -> None:
        """End every process at once."""
        for process in self.started:
            if process.pid is not None:
                process.kill()


@contextmanager
def local(jobs: int) -> Iterator[Crew]:
    """Yield a pool of `jobs` processes; they are killed at once if it is left with an exception."""
    context = _Spawn()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(jobs > 1,))

    def death(error: BaseException) -> str:
        # it is broken: this waits for its processes, whose exit codes are then known
        pool.shutdown()
        return next((_cause(p.exitcode) for p in context.started if p.exitcode), one_line(error))

    try:
        yield Crew(pool, lambda: jobs, death)
    except BaseException:
        context.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _cause(code: int) -> str:
    if code == -signal.SIGKILL:
        return "signal 9: out of memory?"
    return f"signal {-code}: {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"


def _start(one_thread: bool) -> None:
    """Prepare a worker.

    It ends when the sweep ends, and keeps to one core if there are other workers.
    """
    threading.Thread(target=_follow, daemon=True).start()
    if one_thread:
        # read when numba and numpy are first imported, which is later here, and for all threads;
        # what numba.set_num_threads sets holds for the calling thread alone
        os.environ |= dict.fromkeys(
            ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )
        if "numba" in sys.modules:
            sys.modules["numba"].set_num_threads(1)


def _follow() -> None:
    """End this process with its parent.

    A pool's workers outlive a killed parent and would wait for work for ever.
    """
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
