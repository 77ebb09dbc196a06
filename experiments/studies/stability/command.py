"""`roundscope reproduce golden`: runs what is missing, then judges, draws and prints."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.stability.scale import FULL, QUICK, Scale
from roundscope.experiments.sweep.conditions.cell import Cell

FAILED, INTERRUPTED = 1, 130
Studies = dict[str, list[Cell]]


def run(*, quick: bool, out: Path, engine: str, jobs: int | None, as_json: bool) -> int:
    """Measures, then writes golden.sqlite, verdicts.json and report.html into `out`. The exit code: 0, 1 if a cell failed,
    130 after Ctrl-C, when cells that were done are kept, and the training if it was.
    """
    from roundscope.experiments.studies.stability import drift_store
    from roundscope.experiments.studies.stability.conditions import cells
    from roundscope.experiments.studies.stability.results import read
    from roundscope.experiments.sweep.conditions.values import ENGINES

    if engine not in ENGINES:
        raise bad("--engine", engine, f"use {' or '.join(ENGINES)}")
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    scale = QUICK if quick else FULL
    studies = cells(scale, engine)
    out.mkdir(parents=True, exist_ok=True)
    file, unique = out / "golden.sqlite", {cell.key: cell for study in studies.values() for cell in study}
    outcome = _measure(list(unique.values()), file, jobs)
    if outcome.interrupted or not _trained(scale, file):
        console(stderr=True).print(f"interrupted; {outcome.done} cells done now are kept, and the same command goes on")
        return INTERRUPTED
    results = replace(read(file, set(unique)), drifts=drift_store.read(file, scale.training))
    _tell(results, scale, studies, outcome, out, as_json)
    return FAILED if outcome.failed else 0


def _measure(cells: Sequence[Cell], file: Path, jobs: int | None) -> Any:
    """What came of the sweep. Cells that failed before are tried again."""
    from roundscope.experiments.sweep.running import progress as sweep_progress
    from roundscope.experiments.sweep.running import run as loop
    from roundscope.experiments.sweep.storage.store import writing

    with writing(file) as store, sweep_progress.bar() as progress:
        return loop.run(cells, store, jobs=jobs, retry_failed=True, progress=progress)


def _trained(scale: Scale, file: Path) -> bool:
    """Trains what is not in the file; False after Ctrl-C, when none of it is kept."""
    from roundscope.experiments.compile_cache import keep_compilations
    from roundscope.experiments.results.machine import device, versions
    from roundscope.experiments.studies.stability import drift_run, drift_store
    from roundscope.experiments.sweep.storage.store import writing

    t = scale.training
    if drift_store.read(file, t):
        return True
    keep_compilations()
    with writing(file) as store, bar(f"training {len(t.versions) * t.seeds} models", t.config.steps) as progress:
        try:
            found = drift_run.run(t, progress)
        except KeyboardInterrupt:
            return False
        drift_store.save(store, t, found, device("xla"), versions("xla"))
    return True


def _tell(results: Any, scale: Scale, studies: Studies, outcome: Any, out: Path, as_json: bool) -> None:
    """verdicts.json, report.html, and the table or the JSON to stdout."""
    import json

    from roundscope.experiments.studies.stability import drift_store, report, table
    from roundscope.experiments.studies.stability.claims import judged
    from roundscope.experiments.studies.stability.words import QUESTION, answer

    verdicts = judged(results, scale)
    run = {"scale": scale.name, **plain(replace(outcome, parts={})), "seconds": round(outcome.seconds, 1),
           "trained_on": drift_store.devices(out / "golden.sqlite", scale.training)}  # fmt: skip
    data = {"question": QUESTION, "answer": answer(results, scale), "verdicts": plain(verdicts), "run": run,
            "first_error": next((row["error"] for row in results.failed), None)}  # fmt: skip
    (out / "verdicts.json").write_text(json.dumps(plain(data), indent=2) + "\n", encoding="utf-8")
    (out / "report.html").write_text(report.html(results, scale, studies, verdicts, data), encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        table.show(verdicts, data, out)
