"""The one command of all studies.

It runs what is missing, then writes the page and the JSON, and prints the answer.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundscope.experiments.framework import page, terminal
from roundscope.experiments.framework.loop import holds_results, measured
from roundscope.experiments.framework.study import Outcome, R, Static, Study
from roundscope.experiments.framework.verdicts import Verdict
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import console, plain, print_json
from roundscope.tools.results.folder import checked_folder, write_results

FAILED, INTERRUPTED = 1, 130


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
        _say(f"interrupted; {study.unit} that were done are kept, and the same command goes on")
    if results is None and draw:
        raise UsageError(f"--draw: {out} holds no part of this study that is whole; run it first")
    if results is not None:
        static = _static(study, outcome)
        about = _about(outcome, command, time.perf_counter() - began)
        tell(study, results, static, about, out, as_json)
    return INTERRUPTED if outcome.interrupted else FAILED if outcome.failure else 0


def tell(
    study: Study[R], results: R, static: Static, about: dict[str, Any], out: Path, as_json: bool
) -> None:
    """Write PAGE.html and NAME.json, and print the answer, the tables and the verdicts."""
    verdicts = [*study.claims(results), *static.verdicts]
    data = data_of(study, results, verdicts, about)
    shown = page.html(study, results, verdicts, static, data)
    write_results(out, f"{study.name}.json", data, shown, f"{study.page}.html")
    if as_json:
        print_json(data)
    else:
        terminal.show(study, results, verdicts, data, out)


def data_of(
    study: Study[R], results: R, verdicts: Sequence[Verdict], about: dict[str, Any]
) -> dict[str, Any]:
    """Return a study with its results as plain data."""
    head = {"question": study.question, "answer": study.answer(results)}
    judged = {"verdicts": plain(verdicts)} if verdicts else {}
    tables = {table.name: table.records(results) for table in study.tables}
    scale = {"scale": study.scale} if study.scale else {}
    return {**head, **judged, **tables, **scale, "config": dict(study.config), "run": about}


def _about(outcome: Outcome, command: str, seconds: float) -> dict[str, Any]:
    about = {"command": command, **asdict(outcome), "seconds": round(seconds, 1)}
    return {name: value for name, value in about.items() if name != "failure" or value}


def _static(study: Study[Any], outcome: Outcome) -> Static:
    """Return what needs no runs; nothing for a page that is not complete."""
    if study.static is None or outcome.there < outcome.launches:
        return Static()
    with bar("without training", study.parts) as progress:
        return study.static(progress)


def _say(text: str) -> None:
    console(stderr=True).print(text)
