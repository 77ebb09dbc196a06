"""Where cells are measured: processes here, a Dask cluster, or what a user's factory returns.

Every worker here imports this before anything else, so it imports nothing heavy.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from roundscope.tools.errors import ExecutorError, bad, one_line

_CONNECT = 10  # seconds to find a scheduler, or to find it again


@dataclass(frozen=True, slots=True)
class Crew:
    """An executor and its workers.

    executor  the executor;  workers: returns how many workers it has now (a cluster's come and go)
    death     returns how one of them died, from the error of its task
    """

    executor: Executor
    workers: Callable[[], int]
    death: Callable[[BaseException], str] = one_line


def executor_for(text: str | None, jobs: int | None) -> AbstractContextManager[Crew]:
    """Return the executor that --executor names.

    That is None for processes here, dask:ADDRESS, or MODULE:FACTORY. `jobs` is the number of
    workers to count on; None for the cores of this process here, the cluster's own number, or the
    executor's. Left with an exception, what still runs is abandoned. Raises UsageError for a text
    that names nothing, ExecutorError for a scheduler that does not answer.
    """
    if text is None:
        return local(jobs or cores())
    kind, rest = check_executor(text)
    return _dask(text, rest, jobs) if kind == "dask" else _made(text, kind, rest, jobs)


def check_executor(text: str) -> tuple[str, str]:
    """Return the parts before and after the colon of --executor; UsageError for another text."""
    kind, colon, rest = text.partition(":")
    if not (kind and colon and rest):
        raise bad("--executor", text, "use dask:tcp://host:port or module:factory")
    return kind, rest


def cores() -> int:
    """Return the number of cores that this process may use, where the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_death(error: BaseException) -> bool:
    """Return whether an error reports that a worker died, whatever it was doing."""
    scheduler = sys.modules.get("distributed.scheduler")
    return isinstance(error, BrokenExecutor) or (
        scheduler is not None and isinstance(error, scheduler.KilledWorker)
    )


@contextmanager
def _dask(text: str, address: str, jobs: int | None) -> Iterator[Crew]:
    """Yield the workers of a Dask cluster.

    Dask runs what was on a dead worker again, by itself, and gives up with KilledWorker when
    several died of one task (its `allowed-failures`); `retries` would be for tasks that raise,
    which ours do not. `pure=False`: a batch sent again is to be measured again, not answered by the
    failure of the first.
    """
    try:
        from distributed import Client
    except ImportError:
        repair = "needs dask.distributed; run  pip install 'roundscope[cluster]'"
        raise bad("--executor", text, repair) from None
    connect: Any = Client  # its functions have no types
    try:
        client = connect(address, timeout=_CONNECT, set_as_default=False)
    except ValueError as error:
        raise bad("--executor", text, f"is no address of a scheduler ({one_line(error)})") from None
    except OSError:
        raise ExecutorError(
            f"--executor {text!r}: no scheduler answers there in {_CONNECT} s; start one with  dask"
            " scheduler"
        ) from None

    def workers() -> int:
        try:
            return jobs or sum(client.nthreads().values())
        except (OSError, RuntimeError, ValueError) as error:
            raise ExecutorError(
                f"--executor {text!r}: the scheduler is gone ({one_line(error)}); run again to"
                " go on"
            ) from error

    with client, _left(client.get_executor(pure=False)) as executor:
        yield Crew(executor, workers)


@contextmanager
def _made(text: str, module: str, name: str, jobs: int | None) -> Iterator[Crew]:
    """Yield the executor that a user's factory returns, and shut it down in the end."""
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        repair = f"cannot be imported ({one_line(error)}); is its folder on PYTHONPATH?"
        raise bad("--executor", text, repair) from error
    try:
        executor = factory()
    except Exception as error:
        raise ExecutorError(
            f"--executor {text!r}: the factory failed with {type(error).__name__}:"
            f" {one_line(error)}"
        ) from error
    if not isinstance(executor, Executor):
        repair = f"returned a {type(executor).__name__}; return a concurrent.futures.Executor"
        raise bad("--executor", text, repair)
    own = getattr(executor, "_max_workers", None)  # of both pools of the standard library
    with _left(executor):
        yield Crew(executor, lambda: jobs or own or cores())


@contextmanager
def _left(executor: Executor) -> Iterator[Executor]:
    """Shut an executor down, and wait for what it still does only if nothing was raised."""
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False)
        raise
    executor.shutdown()


def hello() -> int:
    """Return this process' id, which shows that a worker starts and finds this package."""
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
        code = next((p.exitcode for p in context.started if p.exitcode), None)
        if code is None:
            return one_line(error)
        if code == -signal.SIGKILL:
            return "signal 9: out of memory?"
        return f"signal {-code}: {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"

    try:
        yield Crew(pool, lambda: jobs, death)
    except BaseException:
        context.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start(one_thread: bool) -> None:
    """Prepare a worker, which ends when the sweep does and has one core if there are others."""
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
    """End this process with its parent; a pool's workers would outlive a killed one for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
