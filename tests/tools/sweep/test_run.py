"""The loop: every cell ends as one row, whatever dies, and an interrupted sweep goes on where it
stopped.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from roundscope.tools.errors import ExecutorError, StorageError, UsageError
from roundscope.tools.sweep.measuring.measure import batches
from roundscope.tools.sweep.running import run as loop
from roundscope.tools.sweep.storage.store import read_cells, writing
from tests.tools.sweep import fakes
from tests.tools.sweep.fakes import INLINE, cell, reference, rows, sweep

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.sqlite"


def counts(outcome):
    return outcome.done, outcome.failed, outcome.skipped


def test_two_workers_give_the_rows_of_one_process(path):
    """Catches cells lost, doubled or mixed up between batches."""
    cells = [cell(i, block_q=q) for i in range(15) for q in (16, 32)]
    done = sweep(path, cells, jobs=2)
    assert counts(done) == (30, 0, 0) and not done.interrupted
    assert done.parts == {"attention": 30 * 0.125, "golden": 30 * 0.125} and done.seconds > 0
    assert rows(path) == reference(path, cells)


def test_what_is_there_is_not_measured_again(path):
    """Catches work done twice, and a failed cell forgotten in the count or tried again unasked."""
    cells = [cell(i) for i in range(4)] + [cell(9, "raise")]
    assert counts(sweep(path, cells, executor=INLINE)) == (4, 1, 0)
    assert counts(sweep(path, [*cells, cell(5), cell(5)], executor=INLINE)) == (1, 1, 4)
    assert counts(sweep(path, cells, executor=INLINE, retry_failed=True)) == (0, 1, 4)
    assert [r["seed"] for r in read_cells(path)] == [0, 1, 2, 3, 5, 9]


def test_a_cell_that_raises_fails_alone(path):
    """Catches a batch that fails for one of its cells."""
    cells = [cell(i, "raise" if i == 2 else "fine") for i in range(8)]
    assert counts(sweep(path, cells, jobs=1)) == (7, 1, 0)
    failed = [r for r in read_cells(path) if r["status"] == "failed"]
    assert [(r["seed"], r["error"], r["max_abs"]) for r in failed] == [
        (2, "RuntimeError: a bug of ours", None)
    ]


def test_a_cell_that_kills_its_worker_fails_alone(path):
    """Catches a sweep that dies with a worker, blames a neighbour, or loses what was under way."""
    cells = [cell(i, {3: "die", 11: "crash"}.get(i, "slow")) for i in range(20)]
    assert counts(sweep(path, cells, jobs=2)) == (18, 2, 0)
    errors = {r["seed"]: r["error"] for r in read_cells(path) if r["status"] == "failed"}
    assert errors[3] == "the worker died (signal 9: out of memory?) measuring this cell alone"
    assert errors[11] == "the worker died (signal 11: Segmentation fault) measuring this cell alone"


def test_a_worker_that_dies_once_costs_nothing(path, tmp_path):
    """Catches a row that says 'failed' although the cell was only near."""
    flag = tmp_path / "died"
    cells = [cell(i, f"die-once:{flag}" if i == 3 else "fine") for i in range(10)]
    assert counts(sweep(path, cells, jobs=2)) == (10, 0, 0) and flag.exists()
    assert rows(path) == reference(path, cells)


def test_results_of_another_version_are_refused(path):
    """Catches rows under keys that no sweep asks for: a worker with another numeric core."""
    with pytest.raises(ExecutorError, match="install this version of roundscope on every worker"):
        sweep(path, [cell(1, "wrong")], executor=INLINE)
    assert read_cells(path) == []


def test_jobs_below_one(path):
    """Catches a pool's own ValueError."""
    with pytest.raises(UsageError, match="--jobs 0: give 1 or more"):
        sweep(path, [cell()], jobs=0)


def test_a_full_disk_ends_the_sweep_at_once_and_keeps_what_it_had(path):
    """Catches a sweep that measures on with nowhere to write, and workers left behind."""
    cells = [cell(i, "slow") for i in range(200)]
    before = set(psutil.Process().children(recursive=True))
    with writing(path) as store:
        [(pages,)] = store.connection.execute("PRAGMA page_count")
        store.connection.execute(f"PRAGMA max_page_count = {pages + 12}")
        with pytest.raises(StorageError, match="the disk is full"):
            loop.run(cells, store, measure=fakes.measure, jobs=2)
    saved = len(read_cells(path))
    assert 0 < saved < 200
    assert not _workers(set(psutil.Process().children(recursive=True)) - before)
    assert counts(sweep(path, cells, measure=fakes.calm, executor=INLINE)) == (
        200 - saved,
        0,
        saved,
    )
    assert rows(path) == reference(path, cells)


@contextmanager
def underway(path, count, at_least):
    """A sweep of slow cells in another process, with some rows in its file; killed in the end."""
    words = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "tests.tools.sweep.fakes",
        str(path),
        str(count),
    ]
    with subprocess.Popen(
        words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            end = time.monotonic() + 60
            while not (path.exists() and path.stat().st_size and len(_read(path)) >= at_least):
                assert process.poll() is None and time.monotonic() < end, process.stderr.read()
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


def _read(path):
    try:
        return read_cells(path)
    except UsageError:  # its tables are not there yet
        return []


def _workers(processes):
    return [
        p
        for p in processes
        if p.is_running()
        and p.status() != psutil.STATUS_ZOMBIE
        and "spawn_main" in " ".join(p.cmdline())
    ]


def test_kill_9_in_the_middle_and_again(path):
    """Catches rows that differ from those of an uninterrupted sweep, a stale lock, and workers that
    live on for ever.
    """
    with underway(path, 60, 8) as process:
        workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
    held = len(read_cells(path))
    assert 8 <= held < 60
    cells = [cell(i, "slow") for i in range(60)]
    assert counts(sweep(path, cells, jobs=2)) == (60 - held, 0, held)
    assert rows(path) == reference(path, cells)
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert len(gone) >= 2 and not alive


def test_ctrl_c_saves_what_has_arrived(path):
    """Catches a traceback, and cells failed by a Ctrl-C, which a terminal sends to the workers
    too.
    """
    with underway(path, 400, 8) as process:
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - began < 10
    saved = len(read_cells(path))
    assert (process.returncode, out, err) == (0, f"2 {saved}\n", "") and 8 <= saved < 400
    assert {r["status"] for r in read_cells(path)} == {"ok"}


def test_ctrl_c_is_given_back(path):
    """Catches a handler that outlives the sweep."""
    before = signal.getsignal(signal.SIGINT)
    sweep(path, [cell()], executor=INLINE)
    assert signal.getsignal(signal.SIGINT) is before


def test_batches_keep_equal_inputs_together(monkeypatch):
    """Catches golden values computed on several workers for want of order, and batches too large or
    lost cells.
    """
    cells = [cell(seed, block_q=q) for q in (8, 16, 32) for seed in range(40)]
    size = 7
    monkeypatch.setattr("roundscope.tools.sweep.measuring.measure.batch_size", lambda _: size)
    made = batches(cells, workers=2)
    assert sorted(c.key for b in made for c in b) == sorted(c.key for c in cells)
    assert max(map(len, made)) <= size
    assert all(sum(c["seed"] == seed for c in b) in (0, 3) for b in made for seed in range(40))
    few = batches(cells[:8], workers=2)
    assert len(few) == 8  # so that both workers have something to do
    assert [len(b) for b in batches([cell(i, engine="xla") for i in range(16)], workers=1)] == [
        7,
        7,
        2,
    ]


def test_progress_counts_every_cell_once(path):
    """Catches a bar that stops short of the end or forgets failures."""
    seen = []
    sweep(
        path,
        [cell(i, "raise" if i == 2 else "fine") for i in range(9)],
        executor=INLINE,
        progress=lambda *now: seen.append(now),
    )
    assert seen[0] == (0, 0, 9) and seen[-1] == (9, 1, 9)
    assert [n for n, *_ in seen] == sorted(n for n, *_ in seen)


def test_the_words_of_the_bar():
    """Catches a rate or a time left that is not that of the cells measured."""
    assert loop._words(0, 0, 10, 3.0) == "starting"
    assert loop._words(100, 0, 7300, 50.0) == "2 cells/s, 1:00:00 left"
    assert loop._words(5, 2, 10, 50.0) == "0.1 cells/s, 0:00:50 left, 2 failed"


def test_a_log_file_gets_a_line_a_minute(capsys):
    """Catches escape sequences in a log file, a line for each cell, and none in 14 minutes."""
    now = [0.0]
    with loop.bar("golden", clock=lambda: now[0]) as show:
        for done in range(0, 301, 10):
            now[0] = 4.0 * done
            show(done, 0, 300)
    out, err = capsys.readouterr()
    assert out == "" and 15 <= len(err.splitlines()) <= 20
    assert err.splitlines()[0] == "golden: 20 of 300 cells, 0.25 cells/s, 0:18:40 left"
