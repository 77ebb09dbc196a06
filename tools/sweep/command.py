"""`roundscope sweep`: makes cells of the words, runs them, and prints a summary of the results."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from roundscope.tools.errors import ExecutorError, UsageError, bad
from roundscope.tools.report.terminal import console, print_json
from roundscope.tools.signals import SIGNALLED
from roundscope.tools.sweep.conditions.cell import Cell
from roundscope.tools.sweep.options import SweepOptions

if TYPE_CHECKING:  # a sweep without results need not import it
    from roundscope.tools.sweep.storage.frames import Frame

FAILED = 1
MOST_JOBS = 4096
# endings of files that a sweep does not write
OTHERS = (".csv", ".tsv", ".parquet", ".json", ".html", ".xlsx")
PARTS = {"golden": "binary64 reference", "unfused": "unfused reference"}


def run(options: SweepOptions) -> int:
    """Run a sweep, or announce it with `dry_run`; return the exit code.

    The code is 0, or 1 if a cell failed, 130 after Ctrl-C, 143 after SIGTERM.

    Raises UsageError for bad usage before anything is written, StorageError and ExecutorError as
    `tools.sweep.running.run`.
    """
    out, jobs, executor = options.out, options.jobs, options.executor
    if out.suffix in OTHERS:
        raise bad(
            "--out",
            str(out),
            "a sweep writes SQLite; end it in .sqlite, and make tables of it with  roundscope"
            " export",
        )
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise bad("--jobs", jobs, f"give 1 or more, up to {MOST_JOBS}")
    if executor is not None:
        from roundscope.tools.sweep.running.executors import check_executor

        check_executor(executor)
    try:
        count, cells, same = _asked(options)
        if options.dry_run:
            _announce(count, cells, same, options)
            return 0
        with _tidy(out):
            return _run(cells, same, options)
    except KeyboardInterrupt:
        console(stderr=True).print("interrupted")
        return SIGNALLED + SIGINT


def _asked(options: SweepOptions) -> tuple[int, list[Cell], int]:
    """Return (the number of points, their cells, how many were left out as repeats)."""
    from roundscope.tools.sweep.conditions.axes import each_point, spec_of
    from roundscope.tools.sweep.conditions.condition import cell_of
    from roundscope.tools.sweep.conditions.repeats import without_repeats
    from roundscope.tools.sweep.storage.earlier import check_default

    spec, count = spec_of(options.axes, options.zips, options.backward), 0
    different: dict[str, Cell] = {}
    for cell in map(cell_of, each_point(spec)):
        count += 1
        different[cell.key] = cell
    cells = without_repeats(different.values())
    if not options.fresh:
        check_default(spec, different, options.out)
    return count, cells, len(different) - len(cells)


@contextmanager
def _tidy(out: Path) -> Iterator[None]:
    """Remove the results file if this sweep made it but could not start, so that it is empty."""
    from roundscope.tools.sweep.storage.store import count_cells

    new = not out.exists()
    try:
        yield
    except (UsageError, ExecutorError):
        if new and out.exists() and not count_cells(out):
            out.unlink()
        raise


def _announce(points: int, cells: list[Cell], same: int, options: SweepOptions) -> None:
    from roundscope.tools.sweep.measuring.measure import measure
    from roundscope.tools.sweep.running import dry_run
    from roundscope.tools.sweep.running.executors import cores
    from roundscope.tools.sweep.storage.store import count_cells, reading, statuses

    out, executor = options.out, options.executor
    held: dict[str, str] = {}
    if out.exists() and not options.fresh:
        with reading(out) as connection:
            held = statuses(connection, {cell.key for cell in cells})
    workers = options.jobs or (cores() if executor is None else 1)
    with _as_one_of(workers):
        preview = dry_run.preview(
            points,
            cells,
            held,
            retry_failed=options.retry_failed,
            workers=workers,
            measure=measure,
            same=same,
        )
    if options.json:
        print_json(preview)
    else:
        lost = count_cells(out) if options.fresh and out.exists() else 0
        dry_run.show(preview, out, workers=workers, executor=executor, thrown_away=lost)


@contextmanager
def _as_one_of(workers: int) -> Iterator[None]:
    """Use as many threads as one of `workers` workers has: one, if there are several workers."""
    import numba

    threads = numba.get_num_threads()
    numba.set_num_threads(1 if workers > 1 else threads)
    try:
        yield
    finally:
        numba.set_num_threads(threads)


def _run(cells: list[Cell], same: int, options: SweepOptions) -> int:
    from roundscope.tools.sweep.running import run as loop
    from roundscope.tools.sweep.running.progress import bar
    from roundscope.tools.sweep.storage.store import writing

    with writing(options.out, options.fresh) as store, bar() as progress:
        outcome = loop.run(
            cells,
            store,
            jobs=options.jobs,
            executor=options.executor,
            retry_failed=options.retry_failed,
            progress=progress,
        )
        report = summary(cells, options.out, outcome) | {
            "same": same,
            "thrown_away": store.thrown_away,
        }
    if options.json:
        print_json(report)
    else:
        _show(report)
    return (
        SIGNALLED + outcome.interrupted if outcome.interrupted else FAILED if outcome.failed else 0
    )


def summary(cells: Sequence[Cell], out: Path, outcome: Any) -> dict[str, Any]:
    """Return a summary of a sweep as data.

    It begins with what is NaN or infinite, and holds counts, how the time was spent, the axes
    without effect, and the first failure.
    """
    from roundscope.tools.sweep.report.idle import idle
    from roundscope.tools.sweep.report.lost import lost, sentence
    from roundscope.tools.sweep.running.dry_run import notes
    from roundscope.tools.sweep.storage.frames import frame_of

    some = outcome.done + outcome.failed + outcome.skipped > 0
    frame = frame_of(out, {cell.key for cell in cells}) if some else None
    none = None if frame is None else lost(frame)
    total = sum(outcome.parts.values())
    return {
        "not_finite": 0 if none is None else int(none.cells.sum()),
        "answer": "" if frame is None or none is None else sentence(frame, none),
        "file": str(out),
        "cells": len(cells),
        "done": outcome.done,
        "failed": outcome.failed,
        "skipped": outcome.skipped,
        "interrupted": bool(outcome.interrupted),
        "seconds": outcome.seconds,
        "parts": (
            {name: seconds / total for name, seconds in outcome.parts.items()} if total else {}
        ),
        "notes": list(notes(cells)),
        "changed_nothing": [] if frame is None else idle(frame),
        "first_error": None if frame is None else _first_error(frame, cells),
    }


def _first_error(frame: "Frame", cells: Sequence[Cell]) -> str | None:
    """Return the error of the first cell that failed, in the order of the sweep."""
    if not frame.failed:
        return None
    errors = dict(zip(frame.failed.column("key"), frame.failed.column("error"), strict=True))
    return next((errors[cell.key] for cell in cells if cell.key in errors), None)


def _show(found: dict[str, Any]) -> None:
    from roundscope.tools.sweep.conditions.repeats import said
    from roundscope.tools.sweep.report.idle import said as changed_nothing
    from roundscope.tools.sweep.report.words import many
    from roundscope.tools.sweep.running.dry_run import said as lines_of

    def say(text: str) -> None:
        console().print(text, markup=False, soft_wrap=True)

    if found["answer"]:
        say(found["answer"])
    rate = f", {found['done'] / found['seconds']:.3g} cells per second" if found["done"] else ""
    if found["thrown_away"]:
        say(f"--fresh threw away {many(found['thrown_away'], 'cell')}")
    say(
        f"{many(found['done'], 'cell')} done, {found['failed']} failed, {found['skipped']} skipped"
        f" (in the file already){rate}"
    )
    if found["same"]:
        say(said(found["same"]))
    for line in lines_of(found["notes"]):
        say(line)
    if found["parts"]:
        shares = sorted(found["parts"].items(), key=lambda part: -part[1])
        parts = [f"{PARTS.get(n, n)} {100 * share:.0f} %" for n, share in shares if share >= 0.005]
        say(f"time: {', '.join(parts)}")
    for line in changed_nothing(found["changed_nothing"], found["not_finite"] > 0):
        say(line)
    if found["failed"]:
        say(f"first failure: {found['first_error']}")
        say("to try failed cells again: the same command with --retry-failed")
    if found["interrupted"]:
        say("interrupted; the results so far are kept, and the same command goes on")
    say(f"written: {found['file']}; its report: roundscope report {shlex.quote(found['file'])}")
