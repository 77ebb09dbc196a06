"""`roundscope sweep`: words to cells, cells to the loop, and what came of it in a few lines."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import ExecutorError, UsageError, bad
from roundscope.experiments.report.terminal import console, print_json
from roundscope.experiments.sweep.conditions.cell import Cell

FAILED, INTERRUPTED = 1, 130
# endings of files that a sweep does not write
OTHERS = (".csv", ".tsv", ".parquet", ".json", ".html", ".xlsx")
PARTS = {"golden": "binary64 reference", "unfused": "unfused reference"}


def run(
    words: Sequence[str],
    *,
    zips: Sequence[str],
    backward: bool,
    out: Path,
    jobs: int | None,
    executor: str | None,
    retry_failed: bool,
    dry_run: bool,
    fresh: bool,
    as_json: bool,
) -> int:
    """Runs, or with `dry_run` announces, a sweep.

    The exit code: 0, 1 if a cell failed, 130 after Ctrl-C or SIGTERM.

    Raises UsageError for bad usage before anything is written, StorageError and ExecutorError as
    `experiments.sweep.running.run`.
    """
    from roundscope.experiments.sweep.conditions.axes import points, spec_of
    from roundscope.experiments.sweep.conditions.condition import cell_of
    from roundscope.experiments.sweep.conditions.repeats import without_repeats

    if out.suffix in OTHERS:
        raise bad(
            "--out",
            str(out),
            "a sweep writes SQLite; end it in .sqlite, and make tables of it with  roundscope"
            " export",
        )
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    try:
        found = points(spec_of(words, zips, backward))
        different = {cell.key: cell for cell in map(cell_of, found)}
        cells = without_repeats(different.values())
        same = len(different) - len(cells)
        if dry_run:
            _announce(len(found), cells, same, out, jobs, executor, retry_failed, fresh, as_json)
            return 0
        with _tidy(out):
            return _run(cells, same, out, jobs, executor, retry_failed, fresh, as_json)
    except KeyboardInterrupt:
        console(stderr=True).print("interrupted")
        return INTERRUPTED


@contextmanager
def _tidy(out: Path) -> Iterator[None]:
    """Removes a file that a sweep made and, since it could not start, left empty."""
    from roundscope.experiments.sweep.storage.store import read_cells

    new = not out.exists()
    try:
        yield
    except (UsageError, ExecutorError):
        if new and out.exists() and not read_cells(out):
            out.unlink()
        raise


def _announce(
    points: int,
    cells: list[Cell],
    same: int,
    out: Path,
    jobs: int | None,
    executor: str | None,
    retry_failed: bool,
    fresh: bool,
    as_json: bool,
) -> None:
    from roundscope.experiments.sweep.measuring.measure import measure
    from roundscope.experiments.sweep.running import dry_run
    from roundscope.experiments.sweep.running.executors import cores
    from roundscope.experiments.sweep.storage.store import read_cells

    there = {row["key"]: row["status"] for row in read_cells(out)} if out.exists() else {}
    held = {} if fresh else there
    workers = jobs or (cores() if executor is None else 1)
    with _as_one_of(workers):
        found = dry_run.preview(
            points,
            cells,
            held,
            retry_failed=retry_failed,
            workers=workers,
            measure=measure,
            same=same,
        )
    if as_json:
        print_json(found)
    else:
        dry_run.show(
            found, out, workers=workers, executor=executor, thrown_away=len(there) if fresh else 0
        )


@contextmanager
def _as_one_of(workers: int) -> Iterator[None]:
    """With the threads that a worker has: one, where it has neighbours."""
    import numba

    threads = numba.get_num_threads()
    numba.set_num_threads(1 if workers > 1 else threads)
    try:
        yield
    finally:
        numba.set_num_threads(threads)


def _run(
    cells: list[Cell],
    same: int,
    out: Path,
    jobs: int | None,
    executor: str | None,
    retry_failed: bool,
    fresh: bool,
    as_json: bool,
) -> int:
    from roundscope.experiments.sweep.running import run as loop
    from roundscope.experiments.sweep.running.progress import bar
    from roundscope.experiments.sweep.storage.store import writing

    with writing(out, fresh) as store, bar() as progress:
        outcome = loop.run(
            cells, store, jobs=jobs, executor=executor, retry_failed=retry_failed, progress=progress
        )
        found = summary(cells, out, outcome) | {"same": same, "thrown_away": store.thrown_away}
    if as_json:
        print_json(found)
    else:
        _show(found)
    return INTERRUPTED if outcome.interrupted else FAILED if outcome.failed else 0


def summary(cells: Sequence[Cell], out: Path, outcome: Any) -> dict[str, Any]:
    """What came of a sweep, as data: counts, where the time went, axes without effect, and the
    first failure.
    """
    from roundscope.experiments.sweep.report.idle import idle
    from roundscope.experiments.sweep.storage.frames import frame_of
    from roundscope.experiments.sweep.storage.store import read_cells

    rows = {row["key"]: row for row in read_cells(out)}
    own = [rows[cell.key] for cell in cells if cell.key in rows]
    total = sum(outcome.parts.values())
    return {
        "file": str(out),
        "cells": len(cells),
        "done": outcome.done,
        "failed": outcome.failed,
        "skipped": outcome.skipped,
        "interrupted": outcome.interrupted,
        "seconds": outcome.seconds,
        "parts": (
            {name: seconds / total for name, seconds in outcome.parts.items()} if total else {}
        ),
        "not_finite": sum(bool(row.get("not_finite")) for row in own),
        "changed_nothing": idle(frame_of(out, {cell.key for cell in cells})) if own else [],
        "first_error": next((row["error"] for row in own if row["status"] == "failed"), None),
    }


def _show(found: dict[str, Any]) -> None:
    from roundscope.experiments.sweep.conditions.repeats import said
    from roundscope.experiments.sweep.report.words import many

    def say(text):
        return console().print(text, markup=False, soft_wrap=True)

    rate = f", {found['done'] / found['seconds']:.3g} cells per second" if found["done"] else ""
    if found["thrown_away"]:
        say(f"--fresh threw away {many(found['thrown_away'], 'cell')}")
    say(
        f"{many(found['done'], 'cell')} done, {found['failed']} failed, {found['skipped']} skipped"
        f" (in the file already){rate}"
    )
    if found["same"]:
        say(said(found["same"]))
    if found["parts"]:
        shares = sorted(found["parts"].items(), key=lambda part: -part[1])
        say(
            "time: "
            + ", ".join(
                f"{PARTS.get(name, name)} {100 * share:.0f} %"
                for name, share in shares
                if share >= 0.005
            )
        )
    if found["not_finite"]:
        have = "cell has" if found["not_finite"] == 1 else "cells have"
        say(
            f"{found['not_finite']} {have} NaN or infinities in their output (not_finite > 0);"
            " their deviations leave these out"
        )
    for axis in found["changed_nothing"]:
        say(f"{axis} changed nothing: all metrics are equal, to the bit")
    if found["failed"]:
        say(f"first failure: {found['first_error']}")
        say("to try failed cells again: the same command with --retry-failed")
    if found["interrupted"]:
        say("interrupted; what was done is kept, and the same command goes on")
    say(f"written: {found['file']}; its report: roundscope report {shlex.quote(found['file'])}")
