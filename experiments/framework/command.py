"""The one command of all studies: it runs what is missing, writes page and JSON, and answers."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from roundscope.experiments.framework import page
from roundscope.experiments.framework.store import Store, is_there, opened
from roundscope.experiments.framework.study import Launch, Outcome, R, Static, Study
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import console, plain
from roundscope.tools.results.folder import checked_folder
from roundscope.tools.signals import INTERRUPTED

P = TypeVar("P")  # a point of a study that keeps no file


def measured(study: Study[R], out: Path, draw: bool) -> tuple[Outcome, R | None]:
    """Run a study in a folder, or with `draw` only read it; return the outcome and any results."""
    if study.measure is not None:
        return study.measure(out, draw)
    with opened(out, study.file or study.name) as store:
        return (counted(study, store, 0) if draw else measure(study, store)), study.results(store)


def holds_results(study: Study[Any], out: Path) -> bool:
    """Return whether a folder holds something of a study to draw; opening it would make a file."""
    if study.measure is not None:
        return any(out.glob(study.kept))
    return is_there(out, study.file or study.name)


def measure(study: Study[Any], store: Store) -> Outcome:
    """Run the launches that are missing; after Ctrl-C, those that were done are kept."""
    from roundscope.tools.results.machine import device

    ran = 0
    try:
        while todo := missing(study, store):
            for number, launch in enumerate(todo):
                title = f"launch {number + 1} of {len(todo)}, {launch.title}"
                with bar(title, launch.steps) as progress:
                    runs = launch.run(progress)
                store.add(runs, launch.config, device("xla"))
                if left := set(launch.keys) - store.keys():
                    raise RuntimeError(
                        f"{launch.title}: {len(left)} runs that it names were not computed"
                    )
                ran += 1
    except KeyboardInterrupt:
        return counted(study, store, ran, interrupted=True)
    return counted(study, store, ran)


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
    study: Study[Any], *, out: Path, command: str, as_json: bool = False, draw: bool = False
) -> int:
    """Run a study into the folder `out`. Return 0, 1 if a launch failed, or 130 after Ctrl-C.

    command  the command as the user gave it, for the page
    draw     whether to train nothing: the page then shows what the results file holds, and says
             what is missing

    After Ctrl-C the launches that were done are kept, and reported where whole parts of the study
    are complete. Raises UsageError before anything is computed, StorageError for a folder that
    cannot be used now.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    checked_folder(out, f"{study.name}.json", f"{study.page}.html")
    if draw and not holds_results(study, out):
        raise bad("--draw", str(out), "holds no results; run the command without --draw first")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    outcome, results = measured(study, out, draw)
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
    report = page.report(study, results, verdicts, static, data)
    kept = out / f"{study.file or study.name}.sqlite"
    deliver(
        report,
        out,
        f"{study.name}.json",
        as_json=as_json,
        page=f"{study.page}.html",
        more=[kept] if kept.exists() else [],
    )
