"""`roundscope sweep`: makes cells of the words, runs them, and prints a summary of the results."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from roundscope.tools.errors import ExecutorError, UsageError, bad
from roundscope.tools.report.terminal import console, plain, print_json
from roundscope.tools.report.wording import many
from roundscope.tools.signals import SIGNALLED
from roundscope.tools.sweep.conditions.cell import Cell, left_out, without_repeats
from roundscope.tools.sweep.options import SweepOptions

if TYPE_CHECKING:
    from roundscope.tools.sweep.report.answers import Answer
    from roundscope.tools.sweep.running.run import Outcome
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
    if options.out.suffix in OTHERS:
        repair = "a sweep writes SQLite; end it in .sqlite, and make tables of it with"
        raise bad("--out", str(options.out), f"{repair}  roundscope export")
    if options.jobs is not None and not 1 <= options.jobs <= MOST_JOBS:
        raise bad("--jobs", options.jobs, f"give 1 or more, up to {MOST_JOBS}")
    if options.executor is not None:
        from roundscope.tools.sweep.running.executors import check_executor

        check_executor(options.executor)
    try:
        from roundscope.tools.sweep.conditions.axes import each_point, spec_of
        from roundscope.tools.sweep.conditions.condition import CannotRunError, cell_of

        points, by_key, refused = 0, dict[str, Cell](), list[str]()
        for point in each_point(spec_of(options.axes, options.zips, options.backward)):
            points += 1
            try:
                cell = cell_of(point)
            except CannotRunError as error:
                refused.append(str(error))
            else:
                by_key[cell.key] = cell
        if refused:
            raise UsageError(f"{_refusal(refused, points)}{_pasted(options, refused[0])}")
        cells = without_repeats(by_key.values())
        same = len(by_key) - len(cells)
        if options.dry_run:
            _announce(options, points, cells, same)
            return 0
        from roundscope.tools.sweep.storage.store import count_cells

        new = not options.out.exists()
        try:
            return _run(options, cells, same)
        except (UsageError, ExecutorError):
            if new and options.out.exists() and not count_cells(options.out):
                options.out.unlink()  # which this sweep made, but it could not start
            raise
    except KeyboardInterrupt:
        console(stderr=True).print("interrupted")
        return SIGNALLED + SIGINT


def _refusal(refused: list[str], points: int) -> str:
    """Return that cells cannot run, in words: how many, why, and what to do."""
    first = "The first is" if len(refused) > 1 else "It is"
    return (
        f"{len(refused)} of {many(points, 'cell')} cannot run, so nothing was computed. {first}"
        f" {refused[0]}"
    )


def _pasted(options: SweepOptions, said: str) -> str:
    """Return the command with the preset that a refusal names; "" if it names none."""
    _, found, preset = said.rpartition("; preset=fa2 is the default, and preset=")
    if not found or any(word.endswith(".toml") for word in options.axes):
        return ""
    words = [f"preset={preset.split()[0]}", *options.axes]
    words += [word for each in options.zips for word in ("--zip", each)]
    words += ["--backward"] if options.backward else []
    if options.out != SweepOptions().out:
        words += ["--out", str(options.out)]
    return f": roundscope sweep {shlex.join(words)}"


def _announce(options: SweepOptions, points: int, cells: list[Cell], same: int) -> None:
    import numba

    from roundscope.tools.sweep.running import dry_run
    from roundscope.tools.sweep.running.executors import cores
    from roundscope.tools.sweep.storage.store import count_cells, reading, statuses

    out, is_there = options.out, options.out.exists()
    held: dict[str, str] = {}
    if is_there and not options.fresh:
        with reading(out) as connection:
            held = statuses(connection, {cell.key for cell in cells})
    workers = options.jobs or (cores() if options.executor is None else 1)
    threads = numba.get_num_threads()
    numba.set_num_threads(1 if workers > 1 else threads)  # as many as one of the workers has
    try:
        preview = dry_run.preview(
            points, cells, held, retry_failed=options.retry_failed, workers=workers, same=same
        )
    finally:
        numba.set_num_threads(threads)
    if options.json:
        print_json(preview)
    else:
        lost = count_cells(out) if options.fresh and is_there else 0
        dry_run.show(preview, out, workers=workers, executor=options.executor, thrown_away=lost)


def _run(options: SweepOptions, cells: list[Cell], same: int) -> int:
    from roundscope.tools.sweep.running import run as loop
    from roundscope.tools.sweep.storage.store import writing

    with writing(options.out, options.fresh) as store, loop.bar() as progress:
        outcome = loop.run(
            cells,
            store,
            jobs=options.jobs,
            executor=options.executor,
            retry_failed=options.retry_failed,
            progress=progress,
        )
        known = answer_of(cells, options.out, outcome)
        report = summary(cells, options.out, outcome, known)
        report |= {"same": same, "thrown_away": store.thrown_away}
    if options.json:
        print_json(report)
    else:
        _show(report, known[1])
    if outcome.interrupted:
        return SIGNALLED + outcome.interrupted
    return FAILED if outcome.failed else 0


def answer_of(
    cells: Sequence[Cell], out: Path, outcome: "Outcome"
) -> tuple["Frame | None", "Answer | None"]:
    """Return the cells that the file has of a sweep, and what they say; None for none."""
    from roundscope.tools.sweep.report.answers import answer
    from roundscope.tools.sweep.storage.frames import frame_of

    if not outcome.done + outcome.failed + outcome.skipped:
        return None, None
    frame = frame_of(out, {cell.key for cell in cells})
    return frame, answer(frame) if len(frame.rows) else None


def summary(
    cells: Sequence[Cell],
    out: Path,
    outcome: "Outcome",
    known: tuple["Frame | None", "Answer | None"] | None = None,
) -> dict[str, Any]:
    """Return a summary of a sweep as data.

    It begins with what is NaN or infinite, and holds the answer (`report.answers`), counts, how the
    time was spent, the axes without effect, and the first failure. known: `answer_of` these.
    """
    from roundscope.tools.sweep.report.answers import as_data
    from roundscope.tools.sweep.report.effects import idle
    from roundscope.tools.sweep.report.lost import lost
    from roundscope.tools.sweep.running.dry_run import notes

    frame, found = answer_of(cells, out, outcome) if known is None else known
    none = None if frame is None else lost(frame)
    failed = {} if frame is None else frame.failed.columns
    errors = dict(zip(failed["key"], failed["error"], strict=True)) if failed else {}
    total = sum(outcome.parts.values())
    return {
        "not_finite": 0 if none is None else int(none.cells.sum()),
        "answer": "" if found is None else found.text,
        "findings": {} if found is None else plain(as_data(found)),
        "file": str(out),
        "cells": len(cells),
        "done": outcome.done,
        "failed": outcome.failed,
        "skipped": outcome.skipped,
        "interrupted": bool(outcome.interrupted),
        "seconds": outcome.seconds,
        "parts": {name: seconds / total for name, seconds in outcome.parts.items() if total},
        "notes": list(notes(cells)),
        "changed_nothing": [] if frame is None else idle(frame),
        "first_error": next((errors[c.key] for c in cells if c.key in errors), None),
    }


def rate_words(cells: int, seconds: float) -> str:
    """Return how fast cells were measured: in cells per second, or in seconds a cell.

    Example:
        >>> rate_words(4, 2.0), rate_words(3, 60.6)
        ('2 cells per second', '20 s a cell')
    """
    if cells >= seconds:
        return f"{cells / seconds:.3g} cells per second"
    return f"{float(f'{seconds / cells:.2g}'):g} s a cell"


def _show(found: dict[str, Any], answer: "Answer | None") -> None:
    from roundscope.tools.report.terminal import show
    from roundscope.tools.sweep.report.answers import parts
    from roundscope.tools.sweep.report.effects import changed_nothing
    from roundscope.tools.sweep.report.words import say
    from roundscope.tools.sweep.running.dry_run import said as lines_of

    if answer is not None:
        show(parts(answer))
    rate = f", {rate_words(found['done'], found['seconds'])}" if found["done"] else ""
    if found["thrown_away"]:
        say(f"--fresh threw away {many(found['thrown_away'], 'cell')}")
    say(
        f"{many(found['done'], 'cell')} done, {found['failed']} failed, {found['skipped']} skipped"
        f" (in the file already){rate}"
    )
    if found["same"]:
        say(left_out(found["same"]))
    for line in lines_of(found["notes"]):
        say(line)
    if found["parts"]:
        shares = sorted(found["parts"].items(), key=lambda part: -part[1])
        spent = [f"{PARTS.get(n, n)} {100 * share:.0f} %" for n, share in shares if share >= 0.005]
        say(f"time: {', '.join(spent)}")
    for line in changed_nothing(found["changed_nothing"], found["not_finite"] > 0):
        say(line)
    if found["failed"]:
        say(f"first failure: {found['first_error']}")
        say("to try failed cells again: the same command with --retry-failed")
    if found["interrupted"]:
        say("interrupted; the results so far are kept, and the same command goes on")
    say(f"written: {found['file']}; its report: roundscope report {shlex.quote(found['file'])}")
