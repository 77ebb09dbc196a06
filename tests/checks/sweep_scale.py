"""A large sweep on a cluster that loses workers, and what its results file costs to use.

    python -m tests.checks.sweep_scale [--cells 100000] [--folder FOLDER] [--every 15] [--seed 0]
    python -m tests.checks.sweep_scale --cells 10000 --copies 25    # reads a file of 1 GB as well

`roundscope sweep` measures many small cells on a Dask cluster of two worker processes on this
machine, and one of the two is killed (SIGKILL) at random times. Meanwhile the memory of the sweep
and of the scheduler, and the size of the results file, are noted and a straight line is fitted to
each. In the end every cell must be in the file exactly once and none may have failed, and a random
sample must equal, in every bit, what this process measures without Dask. Then the commands that
read a results file run, and their time and their largest memory are noted.

FOLDER keeps the results file, and what was seen in watch.json. A second run goes on with what the
file holds, and only reads a full one. With --copies N, a second file is made of the first: the
sweep of N times as many seeds, in which further seeds have the numbers of the first ones. The same
commands then read that file, and a line through both files says what FAR cells would cost.
Exit code 1 if a cell is missing, failed or different.
"""

import argparse
import json
import logging
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from roundscope.tools.sweep.conditions.axes import each_point, spec_of
from roundscope.tools.sweep.conditions.cell import Cell, Result
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.measuring.measure import measure

AXES = (
    "preset=fa2-bf16,qiu-yao",
    "O=bf16,fp16,fp32,e4m3fn,e5m2",
    "P=bf16,fp16,fp32,e4m3fn,e5m2",
    "S=bf16,fp32",
    "tile=16,32",
    "N=1",
    "T=32",
    "H=16",
)
CONDITIONS = 200  # that these axes make
WORKERS = 2
FAR = 10_000_000  # cells of which the slopes are asked
PERIOD = 0.5  # seconds between two looks at the memory
WARM = 0.1  # share of the cells after which a line is fitted: imports and caches come before


@dataclass
class Watch:
    """What was seen while the sweep ran: one number of each list per look.

    cells   in the file;  seconds since the start
    sweep, scheduler   their resident memory, in bytes;  store: size of the file, in bytes
    kills   the number of workers that were killed
    """

    cells: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sweep: list[int] = field(default_factory=list)
    scheduler: list[int] = field(default_factory=list)
    store: list[int] = field(default_factory=list)
    kills: int = 0

    def slope(self, numbers: Sequence[float]) -> float:
        """Return how much a number grows per cell, by least squares while cells were measured.

        The WARM-up is left out, and so is the summary after the last cell.
        """
        x, y = np.array(self.cells, float), np.array(numbers, float)
        use = (x >= x[0] + WARM * (x[-1] - x[0])) & (x < x[-1])
        return float(np.polyfit(x[use], y[use], 1)[0])


@dataclass(frozen=True)
class Cost:
    """The wall time, processor time and peak memory (in bytes) of one command."""

    what: str
    seconds: float
    worked: float
    peak: int


def words_of(cells: int) -> list[str]:
    """Return the axes of a sweep of at least so many cells."""
    return [*AXES, f"seed=0:{-(-cells // CONDITIONS)}"]


def command(*words: str) -> list[str]:
    """Return a command line of roundscope."""
    return [sys.executable, "-m", "roundscope", *words]


@contextmanager
def cluster() -> Iterator[Any]:
    """Yield a Dask cluster of WORKERS processes, which replaces those that die."""
    from distributed import LocalCluster

    start: Any = LocalCluster  # it has no types
    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with start(n_workers=WORKERS, threads_per_worker=1, processes=True, **quiet) as made:
        yield made


def killing(made: Any, every: float, seed: int, watch: Watch, end: threading.Event) -> None:
    """Kill a random worker at random times, `every` seconds apart on average."""
    chance = random.Random(seed)
    while not end.wait(chance.expovariate(1.0 / every)):
        pid = chance.choice(list(made.workers.values())).pid
        if pid and psutil.pid_exists(pid):  # else its successor is still on its way
            os.kill(pid, signal.SIGKILL)
            watch.kills += 1


def look(store: Path, sweep: psutil.Process, began: float, watch: Watch) -> None:
    """Note what is so now."""
    if (cells := saved(store)) is None:
        return
    watch.cells.append(cells)
    watch.seconds.append(time.perf_counter() - began)
    watch.sweep.append(sweep.memory_info().rss)
    watch.scheduler.append(psutil.Process().memory_info().rss)
    watch.store.append(size(store))


def saved(store: Path) -> int | None:
    """Return the last row number of a file's cells; None for a file without them."""
    if not store.exists():
        return None
    with closing(sqlite3.connect(store)) as connection:
        try:
            [(last,)] = connection.execute("SELECT max(rowid) FROM cells")
        except sqlite3.OperationalError:  # not made yet
            return None
    return int(last or 0)


def size(store: Path) -> int:
    """Return the bytes of a results file, with what SQLite keeps beside it while it is written."""
    parts = (store, store.with_name(f"{store.name}-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())


def swept(words: Sequence[str], store: Path, every: float, seed: int) -> Watch:
    """Run the sweep on a cluster while workers are killed; return what was seen."""
    watch, end = Watch(), threading.Event()
    with cluster() as made:
        line = command(
            "sweep", *words, "--out", str(store), "--executor", f"dask:{made.scheduler_address}"
        )
        began = time.perf_counter()
        run = subprocess.Popen(line)
        killer = threading.Thread(target=killing, args=(made, every, seed, watch, end))
        killer.start()
        try:
            process = psutil.Process(run.pid)
            while run.poll() is None:
                look(store, process, began, watch)
                time.sleep(PERIOD)
        finally:
            end.set()
            killer.join()
            run.kill()
    print(f"the sweep ended with exit code {run.returncode}", flush=True)
    return watch


def cost(what: str, line: Sequence[str]) -> Cost:
    """Run a command; return what it cost. Its output is shown if it fails."""
    began, most = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as output:
        run = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)
        ended, status, used = 0, 0, resource.getrusage(resource.RUSAGE_CHILDREN)
        while not ended:
            most = max(most, peak(run.pid))
            time.sleep(0.02)
            ended, status, used = os.wait4(run.pid, os.WNOHANG)
        run.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        output.seek(0)
        if run.returncode:
            print(f"{what}: exit code {run.returncode}\n{output.read()}")
    return Cost(what, seconds, used.ru_utime + used.ru_stime, most)


def peak(pid: int) -> int:
    """Return the most bytes of memory that a process had until now.

    The system's own peak, which no look can miss; `ru_maxrss` of a child begins with its parent's.
    """
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(found[0]) if found else 0  # it has none once it has ended


def costs(words: Sequence[str], store: Path) -> Iterator[Cost]:
    """Yield what the commands that read a results file cost, on a file without a cell to do."""
    out = ("--out", str(store))
    yield cost("resume: nothing is left to do", command("sweep", *words, *out))
    yield cost("the same with --dry-run", command("sweep", *words, *out, "--dry-run"))
    yield cost("report", command("report", str(store)))
    page = store.with_suffix(".html")
    print(f"{'size of the page, MB':<44}{size(page) / 1e6:>10.1f}")
    for table in ("cells", "sites"):
        file = str(store.with_name(f"{table}.csv"))
        yield cost(f"export {table}", command("export", str(store), file, "--table", table))


def by_key(store: Path, key: str) -> float:
    """Return the seconds in which SQLite finds one cell and its sites by the cell's key."""
    began = time.perf_counter()
    with closing(sqlite3.connect(store)) as connection:
        for table in ("cells", "sites"):
            connection.execute(f"SELECT * FROM {table} WHERE key = ?", (key,)).fetchall()
    return time.perf_counter() - began


def faults(store: Path, cells: dict[str, Cell], sample: int, seed: int) -> list[str]:
    """Return what is wrong with a file that should hold these cells, each once and ok."""
    found = []
    with closing(sqlite3.connect(store)) as connection:
        connection.row_factory = sqlite3.Row
        held = [row["key"] for row in connection.execute("SELECT key FROM cells")]
        sites = {row["key"] for row in connection.execute("SELECT DISTINCT key FROM sites")}
        [(failed,)] = connection.execute("SELECT count(*) FROM cells WHERE status <> 'ok'")
        for wrong, what in (
            (len(held) - len(set(held)), "more than once"),
            (len(cells.keys() - set(held)), "missing"),
            (len(set(held) - cells.keys()), "that nobody asked for"),
            (len(cells.keys() - sites), "without sites"),
            (failed, "failed"),
        ):
            print(f"cells {what}: {wrong}")
            found += [what] if wrong else []
        chosen = random.Random(seed).sample(sorted(cells), min(sample, len(cells)))
        other = sum(_differs(connection, result) for result in measure([cells[k] for k in chosen]))
        print(f"cells of a sample of {len(chosen)} that differ in a bit: {other}", flush=True)
    return found + (["different"] if other else [])


def _differs(connection: sqlite3.Connection, result: Result) -> bool:
    """Return whether a cell's rows differ from a result in a bit. SQLite keeps NaN as NULL."""
    [row] = connection.execute("SELECT * FROM cells WHERE key = ?", (result.key,))
    rows = connection.execute("SELECT * FROM sites WHERE key = ?", (result.key,)).fetchall()
    sites = {site["site"]: site for site in rows}
    if sites.keys() != result.sites.keys():
        return True
    pairs = [(row[name], x) for name, x in result.metrics.items()]
    for site, numbers in result.sites.items():
        pairs += [(sites[site][name], x) for name, x in numbers.items()]
    return any(_bits(stored) != _bits(x) for stored, x in pairs)


def _bits(x: float | None) -> str:
    """Return a number as text that tells every bit; NULL and NaN are the same."""
    return float("nan" if x is None else x).hex()


def copied(store: Path, words: Sequence[str], large: Path, more: Sequence[str]) -> None:
    """Write the file of a sweep of more seeds; every row is a copy of one of the smaller sweep.

    words, more: the axes of both, the seed last, so that the cells of a condition follow each other
    """
    old, new = (list(map(cell_of, list(each_point(spec_of(axes))))) for axes in (words, more))
    few, many = len(old) // CONDITIONS, len(new) // CONDITIONS
    pairs = (
        (old[i // many * few + i % many % few].key, cell.key, i % many)
        for i, cell in enumerate(new)
    )
    shutil.copyfile(store, large)
    with closing(sqlite3.connect(large)) as connection:
        connection.execute("CREATE TEMP TABLE pairs (old, new, seed)")
        connection.executemany("INSERT INTO pairs VALUES (?, ?, ?)", pairs)
        connection.execute("DELETE FROM pairs WHERE new IN (SELECT key FROM cells)")
        for table, own in (
            ("cells", {"key": "new", "seed": "pairs.seed"}),
            ("sites", {"key": "new"}),
        ):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            chosen = ", ".join(own.get(name, f'{table}."{name}"') for name in names)
            connection.execute(
                f"INSERT INTO {table} SELECT {chosen} FROM pairs JOIN {table} ON key = old"
                " ORDER BY new"
            )
        connection.commit()


def lines(watch: Watch, store: Path, count: int) -> Iterator[str]:
    """Yield the table of what was seen while the sweep ran."""
    seconds = 1000 * watch.slope(watch.seconds)
    yield f"{'cells between the first and the last look':<44}{watch.cells[-1] - watch.cells[0]:>10}"
    yield f"{'workers killed':<44}{watch.kills:>10}"
    yield f"{'seconds of the sweep':<44}{watch.seconds[-1]:>10.0f}"
    yield f"{'seconds per 1,000 cells':<44}{seconds:>10.2f}"
    yield f"{'bytes of store per cell, by the line':<44}{watch.slope(watch.store):>10.0f}"
    yield f"{'bytes of store per cell, at the end':<44}{size(store) / count:>10.0f}"
    yield f"{f'hours of {FAR:,} cells':<44}{seconds * FAR / 3.6e6:>10.0f}"
    yield f"{f'GB of store of {FAR:,} cells':<44}{size(store) / count * FAR / 1e9:>10.0f}"
    for who, numbers in (("sweep", watch.sweep), ("scheduler", watch.scheduler)):
        grows = watch.slope(numbers) * 1e4 / 1e6
        tenths = [f"{numbers[i * (len(numbers) - 1) // 10] / 1e6:.0f}" for i in range(11)]
        yield f"memory of the {who}, MB, at each tenth of the time: {' '.join(tenths)}"
        yield f"{f'memory of the {who}, MB, largest':<44}{max(numbers) / 1e6:>10.0f}"
        yield f"{f'memory of the {who}, MB per 10,000 cells':<44}{grows:>+10.2f}"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--cells", type=int, default=100_000)
    asked.add_argument("--folder", type=Path, help="keeps the files; else they are removed")
    asked.add_argument("--every", type=float, default=15.0, help="seconds between two kills")
    asked.add_argument("--seed", type=int, default=0, help="of the kills and of the sample")
    asked.add_argument("--copies", type=int, default=1, help="times the file is read larger")
    asked.add_argument("--sample", type=int, default=200, help="cells that are compared by bits")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return _checked(given, folder / "scale.sqlite")


def _checked(given: argparse.Namespace, store: Path) -> int:
    words = words_of(given.cells)
    cells = {cell.key: cell for cell in map(cell_of, list(each_point(spec_of(words))))}
    print(f"roundscope sweep {' '.join(words)}: {len(cells)} cells", flush=True)
    if saved(store) != len(cells):
        watch = swept(words, store, given.every, given.seed)
        print("\n".join(lines(watch, store, len(cells))), flush=True)
        store.with_name("watch.json").write_text(json.dumps(asdict(watch)), encoding="utf-8")
    wrong = faults(store, cells, given.sample, given.seed)
    few = show_costs(words, store, next(iter(cells)))
    if given.copies > 1:
        more, large = words_of(given.copies * len(cells)), store.with_name("large.sqlite")
        print(f"roundscope sweep {' '.join(more)}, copied", flush=True)
        if not large.exists():
            copied(store, words, large, more)
        many = show_costs(more, large, next(iter(cells)))
        show_far(few, many, len(cells), saved(large) or 0)
    return 1 if wrong else 0


def show_costs(words: Sequence[str], store: Path, key: str) -> list[Cost]:
    """Print and return what it costs to use a results file."""
    print(f"{'cells':<44}{saved(store):>10}")
    print(f"{'size of the store, MB':<44}{size(store) / 1e6:>10.0f}")
    print(f"{'one cell and its sites by key, ms':<44}{1000 * by_key(store, key):>10.2f}")
    print(f"{'command':<44}{'seconds':>10}{'CPU s':>10}{'peak MB':>10}", flush=True)
    found = []
    for c in costs(words, store):
        numbers = f"{c.seconds:>10.1f}{c.worked:>10.1f}{c.peak / 1e6:>10.0f}"
        print(f"{c.what:<44}{numbers}", flush=True)
        found.append(c)
    return found


def show_far(few: Sequence[Cost], many: Sequence[Cost], small: int, large: int) -> None:
    """Print the slopes between two files of so many cells, and what FAR cells cost by them."""
    print(f"{'by a line through both':<44}{'per 10,000 cells':>20}{f'at {FAR:,}':>24}")
    for a, b in zip(few, many, strict=True):
        worked, held = (
            (y - x) / (large - small) for x, y in ((a.worked, b.worked), (a.peak, b.peak))
        )
        slope = f"{1e4 * worked:.2f} s {1e4 * held / 1e6:.2f} MB"
        then = f"{worked * FAR / 60:.0f} min {(b.peak + held * (FAR - large)) / 1e9:.1f} GB"
        print(f"{a.what:<44}{slope:>20}{then:>24}")


if __name__ == "__main__":
    sys.exit(main())
