"""`roundscope sweep`: words to cells, cells to the loop, and what came of it in a few lines."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.errors import bad
from experiments.output import console, print_json
from experiments.sweep.cell import Cell

FAILED, INTERRUPTED = 1, 130


def run(
    words: Sequence[str], *, zips: Sequence[str], backward: bool, out: Path, jobs: int | None, executor: str | None,
    retry_failed: bool, dry_run: bool, fresh: bool, as_json: bool,
) -> int:  # fmt: skip
    """Runs, or with `dry_run` announces, a sweep. The exit code: 0, 1 if a cell failed, 130 after Ctrl-C.

    Raises UsageError for bad usage before anything is written, StorageError and ExecutorError as `experiments.sweep.run`.
    """
    from experiments.sweep.axes import points, spec_of
    from experiments.sweep.condition import cell_of

    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    try:
        found = points(spec_of(words, zips, backward))
        cells = list({cell.key: cell for cell in map(cell_of, found)}.values())
        if dry_run:
            _announce(len(found), cells, out, jobs, executor, retry_failed, fresh, as_json)
            return 0
        return _run(cells, out, jobs, executor, retry_failed, fresh, as_json)
    except KeyboardInterrupt:
        console(stderr=True).print("interrupted")
        return INTERRUPTED


def _announce(
    points: int, cells: list[Cell], out: Path, jobs: int | None, executor: str | None, retry_failed: bool, fresh: bool, as_json: bool,
) -> None:  # fmt: skip
    from experiments.sweep import dry_run
    from experiments.sweep.executors import cores
    from experiments.sweep.measure import measure
    from experiments.sweep.store import read_cells

    held = {row["key"]: row["status"] for row in read_cells(out)} if out.exists() and not fresh else {}
    workers = jobs or (cores() if executor is None else 1)
    with _as_one_of(workers):
        found = dry_run.preview(points, cells, held, retry_failed=retry_failed, workers=workers, measure=measure)
    if as_json:
        print_json(found)
    else:
        dry_run.show(found, out, workers=workers, executor=executor, fresh=fresh)


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


def _run(cells: list[Cell], out: Path, jobs: int | None, executor: str | None, retry_failed: bool, fresh: bool, as_json: bool) -> int:
    from experiments.sweep import run as loop
    from experiments.sweep.progress import bar
    from experiments.sweep.store import writing

    with writing(out, fresh) as store, bar() as progress:
        outcome = loop.run(cells, store, jobs=jobs, executor=executor, retry_failed=retry_failed, progress=progress)
        found = summary(cells, out, outcome)
    if as_json:
        print_json(found)
    else:
        _show(found)
    return INTERRUPTED if outcome.interrupted else FAILED if outcome.failed else 0


def summary(cells: Sequence[Cell], out: Path, outcome: Any) -> dict[str, Any]:
    """What came of a sweep, as data: counts, where the time went, and the first failure in the order of the cells."""
    from experiments.sweep.store import read_cells

    rows = {row["key"]: row for row in read_cells(out)}
    own = [rows[cell.key] for cell in cells if cell.key in rows]
    total = sum(outcome.parts.values())
    return {
        "file": str(out), "cells": len(cells), "done": outcome.done, "failed": outcome.failed, "skipped": outcome.skipped,
        "interrupted": outcome.interrupted, "seconds": outcome.seconds,
        "parts": {name: seconds / total for name, seconds in outcome.parts.items()} if total else {},
        "not_finite": sum(bool(row.get("not_finite")) for row in own),
        "first_error": next((row["error"] for row in own if row["status"] == "failed"), None),
    }  # fmt: skip


def _show(found: dict[str, Any]) -> None:
    say = lambda text: console().print(text, markup=False, soft_wrap=True)  # noqa: E731
    rate = f", {found['done'] / found['seconds']:.3g} cells per second" if found["done"] else ""
    say(f"{found['done']} cells done, {found['failed']} failed, {found['skipped']} skipped (in the file already){rate}")
    if found["parts"]:
        shares = sorted(found["parts"].items(), key=lambda part: -part[1])
        say("time: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= 0.005))
    if found["not_finite"]:
        say(f"{found['not_finite']} cells have NaN or infinities in their output (not_finite > 0); their deviations leave these out")
    if found["failed"]:
        say(f"first failure: {found['first_error']}")
        say("to try failed cells again: the same command with --retry-failed")
    if found["interrupted"]:
        say("interrupted; what was done is kept, and the same command goes on")
    say(f"written: {found['file']}; its report: roundscope report {shlex.quote(found['file'])}")
