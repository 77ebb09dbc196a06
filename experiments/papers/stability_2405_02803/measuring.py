"""golden.sqlite: measures what it lacks, cells of a sweep and trainings that drift apart."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roundscope.experiments.framework.study import Outcome
from roundscope.experiments.papers.stability_2405_02803.drift import run as trainings
from roundscope.experiments.papers.stability_2405_02803.drift import store as kept
from roundscope.experiments.papers.stability_2405_02803.drift.trainings import Training
from roundscope.experiments.papers.stability_2405_02803.results import Results, read
from roundscope.tools.report.progress import bar
from roundscope.tools.results.machine import device, versions
from roundscope.tools.sweep.conditions.cell import Cell
from roundscope.tools.sweep.running import run as sweep
from roundscope.tools.sweep.storage.store import writing

FILE = "golden"  # .sqlite
Came = tuple[Outcome, Results | None]


def measured(
    out: Path, draw: bool, *, cells: Sequence[Cell], training: Training, jobs: int | None
) -> Came:
    """Measure what the folder's file lacks, and again what failed. No results after Ctrl-C.

    draw   whether to measure nothing
    cells  the cells, each once
    """
    file, done, trained, interrupted = out / f"{FILE}.sqlite", 0, False, False
    if draw and not file.exists():
        return Outcome(launches=len(cells) + _models(training), there=0, ran=0), None
    if not draw:
        with writing(file) as store, sweep.bar() as progress:
            came = sweep.run(cells, store, jobs=jobs, retry_failed=True, progress=progress)
        done, interrupted = came.done, bool(came.interrupted)
    if not (draw or interrupted or kept.read(file, training)):
        trained = _train(training, file)
        interrupted = not trained
    results = read(file, {cell.key for cell in cells})
    drifts, devices = kept.read(file, training), kept.devices(file, training)
    results = replace(results, drifts=drifts, trained_on=devices)
    ran = done + (_models(training) if trained else 0)
    outcome = _outcome(results, len(cells), training, ran, interrupted)
    return outcome, None if interrupted or not outcome.there else results


def _train(training: Training, file: Path) -> bool:
    """Train and store the results; return False after Ctrl-C, when none of them is stored."""
    text = f"training {_models(training)} models"
    with writing(file) as store, bar(text, training.config.steps) as progress:
        try:
            found = trainings.run(training, progress)
        except KeyboardInterrupt:
            return False
        kept.save(store, training, found, device("xla"), versions("xla"))
    return True


def _outcome(r: Results, cells: int, training: Training, ran: int, interrupted: bool) -> Outcome:
    rows = [row for by_seed in r.cells.values() for row in by_seed.values()]
    devices = {str(row["device"]) for row in rows} | set(r.trained_on)
    return Outcome(
        launches=cells + _models(training),
        there=len(rows) + (_models(training) if r.drifts else 0),
        ran=ran,
        interrupted=interrupted,
        devices=sorted(devices),
        failure=next((str(row["error"]) for row in r.failed), ""),
    )


def _models(training: Training) -> int:
    return len(training.versions) * training.seeds
