"""`roundscope bench sweep`: cells per second of a sweep over formats and seeds.

The rival compiles a program for every condition.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from roundscope.tools.bench.deliver import Line, show
from roundscope.tools.report.progress import Counted, telling
from roundscope.tools.sweep.conditions.cell import Cell, Value

LEGEND = """
A cell: N = 4, T = S = 256, H = 64, tile 64, forward, with its golden and unfused results and the
statistics of every event. one compilation per cell: engine xla with the plan as a constant, the
same attention alone, what one writes without Roundscope. start: until the first cell is there
(workers, compilation), not counted in cells per second.
"""
FORMATS = ("bf16", "fp16", "e4m3fn", "e5m2", "fp32")
PRESETS = ("qiu-yao", "all:bf16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to run cells: how many cells, seconds to start and to run them, and ratios of speeds.

    against_rival   cells per second over those of one compilation per cell
    against_two     cells per second over those of numpy on two cores
    """

    what: str
    cells: int
    start: float
    seconds: float
    against_rival: float = 0.0
    against_two: float = 0.0

    @property
    def rate(self) -> float:
        """Cells per second after the start."""
        return self.cells / self.seconds


def bench_sweep(progress: Callable[[str], None], *, quick: bool = False) -> list[Row]:
    """Return the rows: the rival first, then numpy on 1, 2 and all cores, then xla.

    progress: called with what runs now; quick: whether to run fewer cells.
    """
    from roundscope.tools.sweep.running.executors import cores

    each = 15 if quick else 75  # cells of a worker
    crews = list(dict.fromkeys(j for j in (1, 2, cores()) if j <= cores()))
    counted = Counted(len(crews) + 2)
    progress(counted("one compilation per cell"))
    rows = [_compiling(1 if quick else 3)]
    for jobs in crews:
        counted.next()
        progress(counted(f"numpy, {jobs} workers"))
        rows.append(_pool(jobs, each))
    counted.next()
    progress(counted("xla"))
    rows.append(_in_batches(1 if quick else 3))
    two = next((r.rate for r in rows if r.what.startswith("numpy, 2 ")), rows[1].rate)
    rival = rows[0].rate
    return [replace(r, against_rival=r.rate / rival, against_two=r.rate / two) for r in rows]


def _cells(count: int, engine: str, first_seed: int = 0) -> list[Cell]:
    from roundscope.tools.sweep.conditions.condition import cell_of

    points: Iterator[dict[str, Value]] = (
        {"preset": preset, "format.O": f, "format.AO": g, "seed": seed, "engine": engine}
        for seed in range(first_seed, first_seed + count)
        for preset in PRESETS
        for f in FORMATS
        for g in FORMATS
    )
    return [cell_of(point) for point in islice(points, count)]


def _compiling(count: int) -> Row:
    """Run cells each of whose plans is a constant of an executable compiled for it."""
    from roundscope.attention import Record, Site, examine
    from roundscope.tools.sweep.conditions.inputs import draw

    cells = _cells(count + 1, "xla")
    began, start = time.perf_counter(), 0.0
    for n, cell in enumerate(cells):
        x = draw(cell)
        examine(
            x.q,
            x.k,
            x.v,
            plan=cell.plan,
            block_q=64,
            block_k=64,
            engine="xla",
            record=Record(ones=(Site.P, Site.ALPHA)),
        )
        if n == 0:  # the first cell includes the start of JAX and is not counted
            start, began = time.perf_counter() - began, time.perf_counter()
    return Row(
        what="one compilation per cell",
        cells=count,
        start=start,
        seconds=time.perf_counter() - began,
    )


def _pool(jobs: int, each: int) -> Row:
    from roundscope.tools.sweep.running.run import run
    from roundscope.tools.sweep.storage.store import writing

    arrived: list[tuple[float, int]] = []
    cells = _cells(each * jobs, "numpy")
    with tempfile.TemporaryDirectory() as folder, writing(Path(folder) / "bench.sqlite") as store:
        began = time.perf_counter()
        run(
            cells,
            store,
            jobs=jobs,
            progress=lambda done, failed, total: arrived.append(
                (time.perf_counter(), done + failed)
            ),
        )
    first, last = next(a for a in arrived if a[1]), arrived[-1]
    return Row(
        what=f"numpy, {jobs} workers",
        cells=last[1] - first[1],
        start=first[0] - began,
        seconds=last[0] - first[0],
    )


def _in_batches(count: int) -> Row:
    """Run cells in batches of one executable, in this process; the first batch compiles it."""
    from roundscope.tools.results.machine import device
    from roundscope.tools.sweep.measuring.measure import batch_size, measure

    size = batch_size(_cells(1, "xla")[0])
    began = time.perf_counter()
    measure(_cells(size, "xla"))
    middle = time.perf_counter()
    cells = _cells(count * size, "xla", first_seed=1000)
    for lo in range(0, len(cells), size):
        measure(cells[lo : lo + size])
    seconds = time.perf_counter() - middle
    return Row(
        what=f"xla, {device('xla')}", cells=len(cells), start=middle - began, seconds=seconds
    )


def run(as_json: bool, *, quick: bool = False) -> None:
    """Print the table, or JSON."""
    from roundscope.tools.report.terminal import print_json

    with telling("bench sweep") as tell:
        rows = bench_sweep(tell, quick=quick)
    if as_json:
        print_json([{**asdict(row), "rate": row.rate} for row in rows])
        return
    _show(rows)


def _show(rows: Sequence[Row]) -> None:
    heads = ("cells", "start s", "cells / s", "times rival", "times 2 workers")
    lines = []
    for r in rows:
        ratios = (f"{x:.3g}" for x in (r.rate, r.against_rival, r.against_two))
        lines.append(Line("", r.what, [str(r.cells), f"{r.start:.1f}", *ratios]))
    show(heads, lines, LEGEND)
