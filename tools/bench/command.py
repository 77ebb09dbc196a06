"""The command `bench`: our speed against what a user would use instead, as ratios from one run."""

from collections.abc import Callable, Mapping
from pathlib import Path

from roundscope.emu.errors import unknown
from roundscope.tools.bench.deliver import Drawing, Line, deliver, show
from roundscope.tools.bench.device import bench_device
from roundscope.tools.bench.round import THREADS, Row, bench_round
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.terminal import console
from roundscope.tools.results.folder import can_replace

LEGEND = (
    "GB/s: bytes read and written.  of copy: speed / speed of a copy on as many threads. ours: our"
    " speed / this one's, into a new array for the libraries, which return one. differ: results"
    " that are not ours in every bit (two NaN count as equal), among the values it ran on."
)


def run(
    what: str,
    as_json: bool = False,
    out: Path | None = None,
    *,
    more: Mapping[str, Callable[[bool], None]],
) -> None:
    """Run one benchmark by its name; `out` is a folder for its numbers and its picture.

    more: benchmarks of other layers, which print their numbers, by name; as_json is given to them.
    Raises UsageError for what it cannot do, before it measures anything.
    """
    from roundscope.tools.bench import attention as bench_attention
    from roundscope.tools.bench import dot as bench_dot
    from roundscope.tools.bench import mx as bench_mx
    from roundscope.tools.bench import sweep as bench_sweep

    drawn: dict[str, Callable[[bool, Path | None], None]] = {
        "round": run_round,
        "mx": bench_mx.run,
        "dot": bench_dot.run,
        "attention": bench_attention.run,
    }
    printed: dict[str, Callable[[bool], None]] = {"sweep": bench_sweep.run, **more}
    if what not in (*drawn, *printed):
        raise UsageError(unknown("benchmark", what, (*drawn, *printed)))
    if out is not None and what in printed:
        raise bad(
            "--out",
            str(out),
            f"bench {what} has no picture; use --json, or bench {', '.join(drawn)}",
        )
    if out is not None and out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    if out is not None:
        can_replace(out, f"bench-{what}.json", f"bench-{what}.png")
        out.mkdir(parents=True, exist_ok=True)  # which may fail, and better before minutes of work
    if what in printed:
        printed[what](as_json)
    else:
        drawn[what](as_json, out)


def run_round(as_json: bool = False, out: Path | None = None, size: int = 1 << 26) -> None:
    """Print how fast float32 -> format -> float32 is. Raises ValueError if size is below 1."""
    if size < 1:
        raise ValueError(f"size={size}: give the number of values, 1 or more")
    deliver_rows("round", "Rounding", _measure(size), as_json, out)


def deliver_rows(what: str, doing: str, rows: list[Row], as_json: bool, out: Path | None) -> None:
    """Print and write the rows of a benchmark of rounding; `doing` is its subject in the title."""
    axis = (
        f"speed / speed of a copy of the same bytes (dashed), on {THREADS} threads or on the"
        " same GPU"
    )
    deliver(
        what,
        rows,
        THREADS,
        as_json,
        out,
        show_table=lambda: _print(rows),
        drawing=lambda: Drawing(_bars(rows), answer(doing, rows), axis),
    )


def answer(doing: str, rows: list[Row]) -> str:
    """Return a sentence on our speed against the fastest library and against a copy.

    The libraries of each format are compared with ours where it returns a new array, as they do;
    the copy is compared with ours in place.
    """
    from roundscope.tools.bench.picture import span

    rivals = [r for r in rows if r.ours is not None and not _is_ours(r) and r.name != "copy"]
    best = [
        min(float(r.ours or 0.0) for r in rivals if r.format == name)
        for name in dict.fromkeys(r.format for r in rivals)
    ]
    in_place = [float(r.of_copy or 0.0) for r in rows if r.name == "ours"]
    return (
        f"{doing} into a new array is {span(best)} times as fast as the fastest library that has"
        f" the format; in place it runs at {span(in_place)} of a copy's speed"
    )


def _is_ours(row: Row) -> bool:
    return row.name.startswith("ours")


def _bars(rows: list[Row]) -> list[tuple[str, str, float, bool]]:
    """Return a bar for everything that ran except the copy, which is 1 by definition."""
    return [
        (r.format, r.name, r.of_copy, _is_ours(r))
        for r in rows
        if r.of_copy is not None and not r.name.startswith("copy")
    ]


def _measure(size: int) -> list[Row]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounding", total=1.0)
        rows = bench_round(size, progress=lambda share: bar.advance(task, share))
        task = bar.add_task("on the GPU", total=1.0)
        return rows + bench_device(4 * size, progress=lambda share: bar.advance(task, share))


def _print(rows: list[Row]) -> None:
    heads = ("GB/s", "of copy", "ours", "differ", "of values")
    show(heads, [Line(r.format, r.name, _cells(r), r.note) for r in rows], LEGEND)


def _cells(row: Row) -> list[str]:
    return [
        "-" if row.gbps is None else f"{row.gbps:.3g}",
        "-" if row.of_copy is None else f"{row.of_copy:.2g}",
        "-" if row.ours is None else f"{row.ours:.3g}x",
        "-" if row.differing is None else f"{row.differing}",
        f"{row.values}" if row.values else "-",
    ]
