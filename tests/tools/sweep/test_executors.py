"""Where cells are measured: processes here, a real Dask cluster, a factory; the same rows from
each.
"""

import builtins
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from roundscope.tools.errors import ExecutorError, UsageError
from roundscope.tools.sweep.running import executors
from roundscope.tools.sweep.running.executors import executor_for
from roundscope.tools.sweep.storage.store import read_cells
from tests.tools.sweep.fakes import INLINE, calm, cell, reference, rows, sweep

FAKES = "tests.tools.sweep.fakes"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.sqlite"


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and two worker processes of one thread."""
    from distributed import LocalCluster

    options = dict(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )
    with LocalCluster(**options) as cluster:
        yield cluster


def test_a_worker_with_neighbours_keeps_to_one_core(path, monkeypatch):
    """Catches numba or BLAS on all cores in each of many workers, from whatever thread they are
    called.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # which `make test` has
    sweep(path, [cell(i, "threads") for i in range(2)], jobs=2)
    assert [r["max_abs"] for r in read_cells(path)] == [1.0, 1.0]


def test_a_worker_alone_has_all_cores(path):
    """Catches a single worker, such as xla's, on one core."""
    sweep(path, [cell(0, "threads")], jobs=1)
    assert read_cells(path)[0]["max_abs"] == executors.cores()


def test_workers_without_neighbours_by_default():
    """Catches more workers than cores that this process may use."""
    with executor_for(None, None) as crew:
        assert crew.workers() == len(os.sched_getaffinity(0))


def test_dask_gives_the_serial_rows_with_a_worker_killed_in_the_middle(path, cluster):
    """Catches cells lost or measured into other bits when a cluster loses a worker."""
    cells = [cell(i, "slow") for i in range(80)]
    pids = []

    def kill(done, failed, total):
        if done >= 10 and not pids:
            pids.append(next(iter(cluster.workers.values())).pid)
            os.kill(pids[0], signal.SIGKILL)

    done = sweep(path, cells, executor=f"dask:{cluster.scheduler_address}", progress=kill)
    assert (done.done, done.failed) == (80, 0) and pids
    assert rows(path) == reference(path, cells)


@pytest.mark.thorough
def test_dask_a_cell_that_kills_every_worker_fails_alone(path, cluster):
    """Catches a sweep that waits for ever for, or blames a neighbour of, a cell that no worker
    survives.
    """
    cells = [cell(i, "die" if i == 4 else "fine") for i in range(12)]
    done = sweep(path, cells, executor=f"dask:{cluster.scheduler_address}")
    assert (done.done, done.failed) == (11, 1)
    [failed] = [r for r in read_cells(path) if r["status"] == "failed"]
    assert failed["seed"] == 4 and failed["error"].startswith(
        "the worker died (Attempted to run task"
    )


def test_dask_a_cell_that_raises(path, cluster):
    """Catches a batch that fails for one of its cells."""
    cells = [cell(i, "raise" if i == 1 else "fine") for i in range(6)]
    done = sweep(path, cells, executor=f"dask:{cluster.scheduler_address}")
    assert (done.done, done.failed) == (5, 1)


def test_dask_counts_its_workers(cluster):
    """Catches a cluster kept idle because the cores counted were this machine's."""
    with executor_for(f"dask:{cluster.scheduler_address}", None) as crew:
        end = time.monotonic() + 30
        while (
            crew.workers() != 2 and time.monotonic() < end
        ):  # one may be on its way back from another test
            time.sleep(0.05)
        assert crew.workers() == 2


def test_dask_without_a_scheduler(monkeypatch):
    """Catches a traceback or a wait of minutes."""
    monkeypatch.setattr(executors, "_CONNECT", 1)
    began = time.monotonic()
    with (
        pytest.raises(
            ExecutorError, match=r"'dask:tcp://127\.0\.0\.1:9': no scheduler answers there in 1 s"
        ),
        executor_for("dask:tcp://127.0.0.1:9", None),
    ):
        pass
    assert time.monotonic() - began < 10


def test_dask_with_an_address_that_is_none():
    """Catches a traceback."""
    with (
        pytest.raises(UsageError, match="is no address of a scheduler"),
        executor_for("dask:carrier-pigeon://roof", None),
    ):
        pass


def test_dask_that_is_not_installed(monkeypatch):
    """Catches an ImportError instead of what to install."""
    there = builtins.__import__

    def without(name, *args, **more):
        if name == "distributed":
            raise ImportError(name)
        return there(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with (
        pytest.raises(UsageError, match=r"pip install 'roundscope\[cluster\]'"),
        executor_for("dask:tcp://127.0.0.1:9", None),
    ):
        pass


def test_dask_scheduler_that_ends_in_the_middle(path):
    """Catches a sweep that waits for ever; what had arrived is saved, and another sweep goes on."""
    from distributed import LocalCluster

    options = dict(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )
    cells = [cell(i, "slow") for i in range(200)]
    with LocalCluster(**options) as cluster:
        closing = threading.Thread(target=cluster.close)

        def close(done, failed, total):
            if done >= 10 and closing.ident is None:
                closing.start()

        with pytest.raises(ExecutorError):
            sweep(path, cells, executor=f"dask:{cluster.scheduler_address}", progress=close)
        closing.join()
    held = len(read_cells(path))
    assert 10 <= held < 200
    assert sweep(path, cells, measure=calm, executor=INLINE).skipped == held


def test_a_factory_of_the_users(path):
    """Catches an executor of the standard library that does not do."""
    cells = [cell(i) for i in range(20)]
    sweep(path, cells, executor="concurrent.futures:ThreadPoolExecutor")
    assert rows(path) == reference(path, cells)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("nonsense", UsageError, "use dask:tcp://host:port or module:factory"),
        ("dask:", UsageError, "use dask:tcp://host:port or module:factory"),
        ("no.such.module:make", UsageError, "cannot be imported .*is its folder on PYTHONPATH"),
        (f"{FAKES}:nothing", UsageError, "cannot be imported"),
        (
            f"{FAKES}:not_an_executor",
            UsageError,
            "returned a int; return a concurrent.futures.Executor",
        ),
        (
            f"{FAKES}:broken_factory",
            ExecutorError,
            "the factory failed with RuntimeError: no queue here",
        ),
    ],
)
def test_texts_that_name_no_executor(text, error, words):
    """Catches a traceback."""
    with pytest.raises(error, match=words), executor_for(text, None):
        pass


def test_a_factorys_executor_is_shut_down(monkeypatch):
    """Catches workers of the user's that outlive the sweep."""
    with executor_for("concurrent.futures:ThreadPoolExecutor", 3) as crew:
        assert crew.workers() == 3 and isinstance(crew.executor, ThreadPoolExecutor)
    with pytest.raises(RuntimeError, match="shutdown"):
        crew.executor.submit(print)


def test_ctrl_c_does_not_reach_a_worker_that_still_starts():
    """Catches the traceback of a worker that Ctrl-C met among its imports, and a parent that no
    longer hears it.
    """
    worker = executors._Spawn().Process(target=time.sleep, args=(0.1,))
    worker.start()
    os.kill(worker.pid, signal.SIGINT)
    worker.join()
    assert worker.exitcode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_workers_that_cannot_start_end_the_sweep(path, monkeypatch):
    """Catches a sweep that tries every cell on workers that never come up."""
    monkeypatch.setattr(
        executors, "_start", os.getenv
    )  # whose argument is no bool: every worker fails at once
    with pytest.raises(ExecutorError, match="workers cannot start"):
        sweep(path, [cell(i) for i in range(10)], jobs=2)
    assert read_cells(path) == []
