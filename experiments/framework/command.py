"""The one command of all studies.

It runs what is missing, then writes the page and the JSON, and prints the answer.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundscope.experiments.framework import page
from roundscope.experiments.framework.loop import holds_results, measured
from roundscope.experiments.framework.study import R, Static, Study
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import console, plain
from roundscope.tools.results.folder import checked_folder
from roundscope.tools.signals import INTERRUPTED

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
