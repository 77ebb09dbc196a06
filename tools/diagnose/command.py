"""`roundscope diagnose`: prints a verdict on tensors or a run, and writes its report and JSON."""

import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.replay.store import NAME
from roundscope.tools.diagnose.report.diagnosis import RECORD
from roundscope.tools.diagnose.tensors.findings import Findings, Progress, Stopped, diagnose
from roundscope.tools.errors import bad
from roundscope.tools.report.deliver import write
from roundscope.tools.report.progress import steps
from roundscope.tools.report.terminal import console, print_json, show
from roundscope.tools.results.folder import (
    as_word,
    checked_folder,
    free_folder,
    request_of,
    tell_replaced,
)
from roundscope.tools.signals import INTERRUPTED
from roundscope.tools.tensors.layers import path_given, read_layers
from roundscope.tools.tensors.overrides import Overrides, overrides_of
from roundscope.tools.trace.options import TraceOptions
from roundscope.tools.trace.request import request
from roundscope.tools.trace.served import USUAL, noted, plan_for

LAST = 7  # the writing of the report, after the steps of the diagnosis
# (run, options, folder for what is kept, progress) -> findings, or a report
OfRun = Callable[[Path, DiagnoseOptions, Path, Progress], Any]
SELDOM = 30.0  # seconds between two lines of a run where there is no terminal


def run(options: DiagnoseOptions, of_run: OfRun) -> None:
    """Diagnose a file's layers, or a folder's run by `of_run`. Raises UsageError."""
    path = path_given("RUN_OR_TENSORS", options.source, options.sample)
    is_run = path.is_dir()
    overrides = overrides_of(options.call)
    layer, layout, plan = options.layer, options.layout, options.plan
    out, changes = options.out, options.changes
    arm, first, until = options.arm, options.first, options.until
    said = {f"--{name}": x for name, x in asdict(options.call).items() if name != "causal"}
    if options.call.causal is not None:
        said["--causal" if options.call.causal else "--full"] = True
    wrong: dict[str, Any] = {"--arm": arm, "--from": first, "--until": until}
    repair = "is for a run's folder; leave it out"
    given = {"--layer": layer, "--layout": layout} | said
    if is_run:
        wrong = given | {"--plan": plan, "--set": " ".join(changes) or None}
        repair = "is for tensors: a run has its own plan"
    for name, value in wrong.items():
        if value is not None:
            raise bad(name, value, repair)
    more = [*map(str, changes), *([] if layout is None else [f"layout={layout.upper()}"])]
    digest = request_of(
        str(path.resolve()), layer, plan, overrides, arm, first, until, *more
    )  # without more as older diagnoses have it
    if out is not None:
        checked_folder(out, RECORD)
    parts = [f"diagnose-{path.resolve().name if is_run else path.stem}"]
    parts += [] if arm is None else [arm]
    parts += [] if is_run else [plan or USUAL, *changes]
    name = as_word("-".join(parts))[:200]
    folder = out or free_folder(name, digest, RECORD, NAME)
    tell_replaced(folder, digest, RECORD)
    from roundscope.tools.diagnose.report import data, diagnosis

    start = time.perf_counter()
    try:
        with (
            steps("diagnose", 1 if is_run else 3, LAST, SELDOM if is_run else None) as progress,
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ):
            if is_run:
                found = of_run(path, options, folder, progress)
            else:
                found = _of_file(path, options, overrides, progress)
            progress(LAST, "report")
            if isinstance(found, Findings | Stopped):
                found = data.diagnosis(found, time.perf_counter() - start, _source(options, given))
            report = diagnosis.report(found, digest)
            written = write(report, folder, RECORD)
    except KeyboardInterrupt:
        again = "replays that were done are kept, and the same command goes on"
        console(stderr=True).print(f"interrupted; {again if is_run else 'nothing is kept'}")
        raise SystemExit(INTERRUPTED) from None
    if options.json:
        print_json(report.data)
    else:
        show(report.brief)
        print(f"written: {', '.join(map(str, written))}")


def _source(options: DiagnoseOptions, given: dict[str, Any]) -> str:
    """Return the tensors, with what was said of them, as words of the command of a next step."""
    words = ["--sample" if options.source is None else str(options.source)]
    for name, value in given.items():
        if value is not None:
            words += [name] if value is True else [name, str(value)]
    return shlex.join(words)


def _of_file(
    path: Path, options: DiagnoseOptions, overrides: Overrides, progress: Progress
) -> Findings | Stopped:
    plan = options.plan
    layers = read_layers(path, options.layout, options.layer, overrides=overrides)
    own = TraceOptions(budget=False, changes=options.changes)
    asked = request(own, plan_for(layers, plan), "none")
    layers = [noted(each, asked.plan, is_asked=plan is not None) for each in layers]
    return diagnose(layers, asked, path.name, progress)
