"""The one command of all studies: it runs what is missing, writes page and JSON, and answers."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from roundscope.experiments.framework.store import Store, is_there, opened
from roundscope.experiments.framework.study import Launch, Outcome, R, Static, Study
from roundscope.experiments.framework.study import Table as StudyTable
from roundscope.experiments.framework.verdicts import Verdict, Word, lines
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.model import (
    Cell,
    Code,
    Folded,
    Mood,
    Opening,
    Picture,
    Report,
    Section,
    Table,
    Text,
    notes,
)
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import console, plain
from roundscope.tools.results.folder import checked_folder
from roundscope.tools.results.run import Run
from roundscope.tools.signals import INTERRUPTED

P = TypeVar("P")  # a point of a study that keeps no file


def measured(study: Study[R], out: Path, draw: bool, jobs: int = 1) -> tuple[Outcome, R | None]:
    """Run a study in a folder, or with `draw` only read it; return the outcome and any results."""
    if study.measure is not None:
        return study.measure(out, draw)
    with opened(out, study.file or study.name) as store:
        outcome = counted(study, store, 0) if draw else measure(study, store, jobs)
        return outcome, study.results(store)


def measure(study: Study[Any], store: Store, jobs: int = 1) -> Outcome:
    """Run the launches that are missing; after Ctrl-C, those that were done are kept.

    jobs  the number of launches at a time. With more than 1 each runs in a process of its own, so
          the launches have to be picklable, and they share the device
    """
    from roundscope.tools.results.machine import device

    ran = 0
    try:
        while todo := missing(study, store):
            for launch, runs in _one_by_one(todo) if jobs == 1 else _together(todo, jobs):
                store.add(runs, launch.config, device("xla"))
                if left := set(launch.keys) - store.keys():
                    raise RuntimeError(
                        f"{launch.title}: {len(left)} runs that it names were not computed"
                    )
                ran += 1
    except KeyboardInterrupt:
        return counted(study, store, ran, interrupted=True)
    return counted(study, store, ran)


Done = Iterator[tuple[Launch, Mapping[str, Run[Any]]]]  # a launch and its runs


def _one_by_one(todo: Sequence[Launch]) -> Done:
    for number, launch in enumerate(todo):
        title = f"launch {number + 1} of {len(todo)}, {launch.title}"
        with bar(title, launch.steps) as progress:
            runs = launch.run(progress)
        yield launch, runs


def _together(todo: Sequence[Launch], jobs: int) -> Done:
    """Yield launches as they end, several at a time; they are killed where this is left early.

    The error of one that failed is raised after the others.
    """
    from roundscope.tools.sweep.running.executors import local

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU's memory is shared
    with bar(f"{len(todo)} launches, {jobs} at a time", len(todo)) as progress, local(jobs) as crew:
        running = {crew.executor.submit(launch.run, _untold): launch for launch in todo}
        errors: list[BaseException] = []
        for number, future in enumerate(as_completed(running)):
            if error := future.exception():
                errors.append(error)
            else:
                yield running[future], future.result()
            progress(number + 1)
    if errors:
        raise errors[0]


def _untold(done: int) -> None:
    """Take the progress of a launch in another process, which nobody shows."""


def missing(study: Study[Any], store: Store) -> list[Launch]:
    """Return the launches of which some run is not stored."""
    there = store.keys()
    return [launch for launch in study.launches(store) if not there.issuperset(launch.keys)]


def counted(study: Study[Any], store: Store, ran: int, *, interrupted: bool = False) -> Outcome:
    """Return the outcome: what is stored by now."""
    launches, left = study.launches(store), len(missing(study, store))
    return Outcome(
        launches=len(launches),
        there=len(launches) - left,
        ran=ran,
        interrupted=interrupted,
        devices=store.devices(key for launch in launches for key in launch.keys),
    )


def computed(name: str, total: int, points: Iterable[P]) -> tuple[Outcome, list[P] | None]:
    """Return the points of a study that takes seconds and keeps no file; none after Ctrl-C."""
    done: list[P] = []
    try:
        with bar(name, total) as progress:
            for point in points:
                done.append(point)
                progress(len(done))
    except KeyboardInterrupt:
        return Outcome(launches=total, there=0, ran=len(done), interrupted=True), None
    return Outcome(launches=total, there=total, ran=total, devices=["cpu"]), done


FAILED = 1


def run(
    study: Study[Any],
    *,
    out: Path,
    command: str,
    as_json: bool = False,
    draw: bool = False,
    jobs: int = 1,
) -> int:
    """Run a study into the folder `out`. Return 0, 1 if a launch failed, or 130 after Ctrl-C.

    command  the command as the user gave it, for the page
    jobs     the number of launches at a time (`measure`)
    draw     whether to train nothing: the page then shows what the results file holds, and says
             what is missing

    After Ctrl-C the launches that were done are kept, and reported where whole parts of the study
    are complete. Raises UsageError before anything is computed, StorageError for a folder that
    cannot be used now.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    checked_folder(out, f"{study.name}.json", f"{study.page}.html")
    kept = any(out.glob(study.kept)) if study.measure else is_there(out, study.file or study.name)
    if draw and not kept:
        repair = (
            "holds no results; run the command without --draw first, or copy a run of record into"
            " it (docs/runs/README.md)"
        )
        raise bad("--draw", str(out), repair)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    outcome, results = measured(study, out, draw, jobs)
    if outcome.interrupted:
        console(stderr=True).print(
            f"interrupted; {study.unit} that were done are kept, and the same command goes on"
        )
    if results is None and draw:
        raise UsageError(f"--draw: {out} holds no part of this study that is whole; run it first")
    if results is not None:
        static = Static()
        if study.static is not None and outcome.there == outcome.launches:  # for whole pages only
            with bar("without training", study.parts) as progress:
                static = study.static(progress)
        seconds = round(time.perf_counter() - began, 1)
        about = {"command": command, **asdict(outcome), "seconds": seconds}
        if not outcome.failure:
            del about["failure"]
        tell(study, results, static, about, out, as_json)
    return INTERRUPTED if outcome.interrupted else FAILED if outcome.failure else 0


def tell(
    study: Study[R], results: R, static: Static, about: dict[str, Any], out: Path, as_json: bool
) -> None:
    """Write PAGE.html and NAME.json, and print the answer, the tables and the verdicts."""
    verdicts = [*study.claims(results), *static.verdicts]
    data = {
        "question": study.question,
        "answer": study.answer(results),
        **({"verdicts": plain(verdicts)} if verdicts else {}),
        **{table.name: table.records(results) for table in study.tables},
        **({"scale": study.scale} if study.scale else {}),
        "config": dict(study.config),
        "run": about,
    }
    kept = out / f"{study.file or study.name}.sqlite"
    deliver(
        report(study, results, verdicts, static, data),
        out,
        f"{study.name}.json",
        as_json=as_json,
        page=f"{study.page}.html",
        more=[kept] if kept.exists() else [],
    )


COUNTED = {  # words of verdicts, of several
    Word.AGREES: "agree with the claim",
    Word.CONTRADICTS: "contradict it",
    Word.DEPENDS: "depend on something that it does not state",
}
MOODS: dict[Word, Mood] = {Word.AGREES: "good", Word.CONTRADICTS: "bad", Word.DEPENDS: "warn"}
READ = (
    "A claim is a sentence of the paper, or of ours, as it can be tested. A verdict is what our"
    " measurement says of it: it agrees, contradicts or is undecided (its interval reaches across"
    " the border of the claim), or it depends on something that the claim does not state."
)


def report(
    study: Study[R],
    results: R,
    verdicts: Sequence[Verdict],
    static: Static,
    data: Mapping[str, Any],
) -> Report:
    """Return the report of a study: its page, and in brief what the terminal shows."""
    run, count = data["run"], Counter(v.word for v in verdicts)
    lack, how = lacking(run, study.unit), notes(READ if verdicts else "", *study.rules)
    words = ", ".join(f"{count[w]} {COUNTED.get(w, w)}" for w in Word if count[w])
    told = [verdict_table(verdicts, study.source)] if verdicts else []
    figures = [(f.title, f.draw(results), f.caption) for f in study.figures]
    drawn = [Picture(title, each, text) for title, each, text in figures if each is not None]
    scale = f" ({study.scale})" if study.scale else ""
    known = [
        f"-- {v.figure}: {v.claim}; {v.case}; {v.sizes}\n" + ";\n".join(v.queries) + ";"
        for v in verdicts
        if v.queries
    ]
    sql = Folded(f"SQL over {study.file or study.name}.sqlite", [Code("\n\n".join(known))])
    return Report(
        title=study.paper or study.question,
        heading=study.question,
        about=study.paper,
        opening=Opening(
            data["answer"],
            f"{len(verdicts)} verdicts: {words}." if verdicts else "",
            run["command"].replace(" --draw", ""),
            "Next, the rest of it" if lack else "To measure it yourself",
        ),
        parts=[
            *([Text("", lead=lack)] if lack else []),
            *([Folded("How to read this page", how)] if how else []),
            *drawn[:1],
            *([Section("Verdicts", [*notes(study.caution), *told])] if told else []),
            *([Section("Pictures", drawn[1:])] if drawn[1:] else []),
            *(
                [Section(static.title, [Picture(*x) for x in static.figures])]
                if static.figures
                else []
            ),
            *(
                Section(t.title, [Table(t.heads, [*t.rows(results)]), *notes(t.note)])
                for t in study.tables
            ),
            _about_run(study, run, data["config"]),
            *([Section("The queries behind the numbers", [sql])] if known else []),
        ],
        brief=[
            Text(data["answer"]),
            *(_shown(table, [*table.rows(results)]) for table in study.tables if table.shown),
            *told,
            *(Text(text) for text in (study.caution if verdicts else "", lack) if text),
            Text(f"{study.unit}: {launched(run)}{scale}"),
        ],
        data=data,
    )


def _shown(table: StudyTable[Any], rows: Sequence[Sequence[str]]) -> Table:
    """Return the columns that the terminal shows; a first cell like the one above is left out."""
    kept = [column for column in table.shown if any(row[column] for row in rows)]
    cells: list[list[str | Cell]] = []
    before = ""
    for row in rows:
        first, *rest = (row[column] for column in kept)
        if table.grouped and first != before:
            cells.append([Cell(first, "strong"), *("" for _ in rest[1:])])
        cells.append([*rest] if table.grouped else ["" if first == before else first, *rest])
        before = first
    return Table([table.heads[n] for n in (kept[1:] if table.grouped else kept)], cells)


def verdict_table(verdicts: Sequence[Verdict], first: str = "row") -> Table:
    """Return the table of verdicts; `first` heads the column that says where a claim stands."""
    rows = [
        (
            place,
            claim,
            v.case,
            Cell(v.measured, note=v.note),
            Cell(str(v.word), MOODS.get(v.word, "note")),
        )
        for place, claim, v in lines(verdicts)
    ]
    return Table((first, "claim", "case", "measured", "verdict"), rows, is_prose=True)


def lacking(run: Mapping[str, Any], unit: str) -> str:
    """Return what a page lacks, in words; empty for a complete one. `unit` is `Study.unit`."""
    if run["there"] == run["launches"]:
        return ""
    failure = f" The first that failed: {run['failure']}." if run.get("failure") else ""
    return (
        f"Not complete: {run['there']} of {run['launches']} {unit} are there; parts that are not"
        f" whole, and parts that need none, are left out.{failure} The same command, without"
        " --draw, goes on and completes this page."
    )


def launched(run: Mapping[str, Any]) -> str:
    """Return how many launches a page shows, and how many of them the last command ran."""
    when = f", {run['ran']} of them run by the last command in {run['seconds']} s"
    if run["interrupted"]:
        when = f"; the last command was interrupted after {run['seconds']} s"
    return f"{run['there']} of {run['launches']}{when}"


def _about_run(study: Study[Any], run: Mapping[str, Any], config: Mapping[str, Any]) -> Section:
    about = {
        "command": run["command"],
        study.unit: launched(run),
        "device": ", ".join(run["devices"]),
        **study.about,
        "config": " ".join(f"{name}={value}" for name, value in config.items()),
    }
    width = max(map(len, about)) + 2
    text = "\n".join(f"{name:{width}}{line}" for name, line in about.items() if line)
    title = "What was run, and what was not shown" if study.caveats else "What was run"
    return Section(title, [*([Text(study.caveats)] if study.caveats else []), Code(text)])
