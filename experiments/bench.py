"""The verb `bench`: our own speed against what a user would pick instead, ratios from one run."""

from collections.abc import Callable
from typing import Any

from emu.formats import unknown
from experiments.bench_device import bench_device
from experiments.bench_round import Row, bench_round
from experiments.errors import UsageError
from experiments.output import console, print_json

LEGEND = (
    "GB/s: bytes read and written.  of copy: speed / speed of a copy on as many threads.\n"
    "ours: our speed / this one's, into a new array for the libraries, which return one.\n"
    "differ: results that are not ours in every bit (two NaN count as equal), among the values it ran on."
)


def run(what: str, as_json: bool = False) -> None:
    """One benchmark by name. Raises UsageError for a name that is none."""
    from experiments import bench_attention, bench_dot, bench_mx, bench_step, bench_sweep

    benchmarks: dict[str, Callable[[bool], None]] = {
        "round": run_round, "mx": bench_mx.run, "dot": bench_dot.run, "attention": bench_attention.run,
        "sweep": bench_sweep.run, "step": bench_step.run,
    }  # fmt: skip
    if what not in benchmarks:
        raise UsageError(unknown("benchmark", what, benchmarks))
    benchmarks[what](as_json)


def run_round(json: bool = False, size: int = 1 << 26) -> None:
    """Print how fast float32 -> format -> float32 is. Raises ValueError if size is below 1."""
    if size < 1:
        raise ValueError(f"size={size}: give the number of values, 1 or more")
    rows = _measure(size)
    if json:
        print_json(rows)
    else:
        _print(rows)


def _measure(size: int) -> list[Row]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounding", total=1.0)
        rows = bench_round(size, progress=lambda share: bar.advance(task, share))
        task = bar.add_task("on the GPU", total=1.0)
        return rows + bench_device(4 * size, progress=lambda share: bar.advance(task, share))


def _print(rows: list[Row]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("format", "", "GB/s", "of copy", "ours", "differ", "of values", ""):
        table.add_column(heading, justify="left" if heading in ("format", "") else "right", no_wrap=True)
    for previous, row in zip([None, *rows], rows, strict=False):
        if previous and previous.format != row.format:
            table.add_section()
        table.add_row(*_cells(row))
    out = console()
    out.print(table)
    out.print(LEGEND, style="dim")


def _cells(row: Row) -> list[Any]:
    return [
        row.format,
        row.name,
        "-" if row.gbps is None else f"{row.gbps:.3g}",
        "-" if row.of_copy is None else f"{row.of_copy:.2g}",
        "-" if row.ours is None else f"{row.ours:.3g}x",
        "-" if row.differing is None else f"{row.differing}",
        f"{row.values}" if row.values else "-",
        row.note,
    ]
