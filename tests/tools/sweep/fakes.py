"""Cells that cost nothing, and a measurement of them that can be slow, fail, or kill its worker:
`input` says which.
"""

import hashlib
import os
import signal
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from roundscope.attention.plans.plan import Plan
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell, Result
from roundscope.tools.sweep.running import run as loop
from roundscope.tools.sweep.storage.store import read_cells, read_sites, writing

INLINE = f"{__package__}.fakes:Inline"
PLAN = Plan.preset("qiu-yao")


def cell(seed=0, what="fine", **more):
    """A cell; `more` are parameters, with _ for the . of one site's axis."""
    names = {name.replace("_O", ".O"): value for name, value in more.items()}
    return Cell(
        parameters=tuple((DEFAULTS | {"seed": seed, "input": what} | names).items()), plan=PLAN
    )


def result(of):
    """Numbers that depend on the cell's key alone."""
    number = int.from_bytes(hashlib.sha256(of.key.encode()).digest()[:6], "big") / 3.0
    return Result(
        key=of.key,
        metrics={"max_abs": number, "mean": float("nan"), "ratio_max": float("inf")},
        sites={"O": {"n": 4.0, "mean_ulps": -number}, "P": {"n": 2.0}},
        seconds=0.25,
        parts={"attention": 0.125, "golden": 0.125},
        device="none",
        versions={"numpy": "2"},
    )


def measure(cells):
    """The results of cells, each after it did what its input says."""
    return [_measured(of) for of in cells]


def calm(cells):
    """The same results, and nothing that their inputs say."""
    return [result(of) for of in cells]


def _measured(of):
    what, _, path = str(of["input"]).partition(":")
    if what == "slow":
        time.sleep(0.05)
    if what == "raise":
        raise RuntimeError("a bug\nof ours")
    if what == "wrong":
        return replace(result(of), key="another")
    if what == "die" or (what == "die-once" and _first(path)):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "threads":
        return replace(result(of), metrics={"max_abs": float(_threads())})
    return result(of)


def _first(path):
    """Whether this is the first call with a path, in all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _threads():
    """The most threads that numba or BLAS would use, from whichever thread they are called."""
    import numba
    from threadpoolctl import threadpool_info

    with ThreadPoolExecutor(1) as other:
        numbas = [numba.get_num_threads(), other.submit(numba.get_num_threads).result()]
    return max(numbas + [library["num_threads"] for library in threadpool_info()])


def sweep(path, cells, measure=measure, **options):
    """Measures cells into a file: the outcome."""
    with writing(Path(path)) as store:
        return loop.run(cells, store, measure=measure, **options)


def reference(path, cells):
    """The rows of an uninterrupted sweep in this process, from a file next to `path`."""
    other = path.with_name("reference.sqlite")
    sweep(other, cells, measure=calm, executor=INLINE)
    return rows(other)


def rows(path):
    """Everything a file has but the time of writing: key -> row, and the rows of sites."""
    cells = {
        row["key"]: {k: v for k, v in row.items() if k != "finished"}
        for row in read_cells(Path(path))
    }
    return cells, read_sites(Path(path))


class Inline(Executor):
    """Runs what it is given at once: an executor that is no pool."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def not_an_executor():
    """A factory of something else."""
    return 3


def broken_factory():
    """A factory that fails."""
    raise RuntimeError("no queue\nhere")


if __name__ == "__main__":  # FILE COUNT: a sweep of slow cells to be killed in the middle
    done = sweep(sys.argv[1], [cell(i, "slow") for i in range(int(sys.argv[2]))], jobs=2)
    print(done.interrupted, done.done)
