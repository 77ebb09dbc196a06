"""`roundscope diagnose`: tensors or a run in; a verdict, report.html and diagnosis.json out."""

import json as json_text
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.diagnose.tensors.findings import Findings, Progress, diagnose
from roundscope.experiments.errors import UsageError, bad
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.tensors.layers import read_layers, sample_path
from roundscope.experiments.trace.options import Request, request

LAST = 7  # behind the steps of the chain: the writing of the report
OF_TENSORS, OF_RUNS = ("--layer", "--plan", "--causal"), ("--arm", "--from", "--until")
PLAN, PROXY = "qiu-yao", "proxy.sqlite"


def run(
    source: Path | None, *, sample: bool, layer: str | None, plan: str | None, causal: bool, arm: str | None, first: int | None,
    until: int | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Diagnose a file's layers, or an arm of a run. Raises UsageError for bad usage."""
    if (source is None) == (not sample):
        raise UsageError(f"RUN_OR_TENSORS {'and --sample are both given: choose one' if sample else 'is missing: give one, or --sample'}")
    path = sample_path() if source is None else source
    is_run = path.is_dir()
    for name, value in zip((*OF_TENSORS, *OF_RUNS), (layer, plan, causal or None, arm, first, until), strict=True):
        if value is not None and (name in OF_TENSORS) == is_run:
            raise bad(name, value, "is for tensors: a run has its own plan" if is_run else "is for a run's folder; leave it out")
    folder = out if out is not None else Path(_named(path, plan, arm))
    if folder.exists() and not folder.is_dir():
        raise bad("--out", str(folder), "is a file; name a folder")
    if is_run and (path / PROXY).is_file():
        _proxy(path, arm, first, until, folder, as_json)
        return
    start = time.perf_counter()
    with _progress(1 if is_run else 3) as progress, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = _of_run(path, arm, first, until, progress) if is_run else _of_file(path, layer, plan or PLAN, causal, progress)
        progress(LAST, "report")
        data = _written(found, folder, start)
    if as_json:
        print_json(data)
    else:
        _shown(found, folder, data)


def _proxy(path: Path, arm: str | None, first: int | None, until: int | None, folder: Path, as_json: bool) -> None:
    """Of a `roundscope proxy`'s folder."""
    from roundscope.experiments.diagnose.student import page as proxy_report
    from roundscope.experiments.diagnose.student.run import diagnose as diagnose_proxy
    from roundscope.experiments.studies.dose.command import INTERRUPTED

    try:
        with _progress(1) as progress:
            found = diagnose_proxy(path, arm=arm, first=first, until=until, out=folder, progress=progress)
            progress(LAST, "report")
            data = proxy_report.written(found, folder)
    except KeyboardInterrupt:
        console(stderr=True).print("interrupted; replays that were done are kept, and the same command goes on")
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        print_json(data)
    else:
        proxy_report.shown(found, folder)


def _named(path: Path, plan: str | None, arm: str | None) -> str:
    """Of the folder: what was diagnosed."""
    parts = [f"diagnose-{path.resolve().name if path.is_dir() else path.stem}", *([] if arm is None else [arm])]
    return "-".join(re.sub(r"[^A-Za-z0-9_.=-]+", "-", x) for x in (*parts, *([] if path.is_dir() else [plan or PLAN])))


def _of_file(path: Path, layer: str | None, plan: str, causal: bool, progress: Progress) -> Findings:
    asked = _request(plan, causal)
    return diagnose(read_layers(path, layer=layer), asked, path.name, progress)


def _of_run(path: Path, arm: str | None, first: int | None, until: int | None, progress: Progress) -> Findings:
    from roundscope.experiments.diagnose.gpt.run import diagnose_run

    return diagnose_run(path, name=arm, first=first, until=until, progress=progress)


def _request(plan: str, causal: bool) -> Request:
    return request(
        plan=plan, against="exact", sets=[], inject=[], record=[], engine="numpy", seed=0, block_q=128, block_k=128, scale=None,
        causal=causal,
    )  # fmt: skip


def _written(found: Findings, folder: Path, start: float) -> dict[str, Any]:
    from roundscope.experiments.diagnose.report import data
    from roundscope.experiments.diagnose.report import page as report
    from roundscope.experiments.diagnose.report.steps import steps

    made = steps(found)
    document = plain(data.document(found, time.perf_counter() - start))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(report.html(found, made, document), encoding="utf-8")
    (folder / "diagnosis.json").write_text(json_text.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return document


def _shown(found: Findings, folder: Path, data: dict[str, Any]) -> None:
    from roundscope.experiments.diagnose.report import words, words_run, words_search

    screen = console()
    screen.print(f"verdict: {words.kind(found)}", style="bold", markup=False)
    screen.print(words.headline(found), markup=False)
    if found.run is not None:
        for said in filter(None, (words_run.replayed(found.run), words_search.searched(found.run), words_run.survivors(found.run))):
            screen.print(said, markup=False)
    for x in found.verdict.links:
        screen.print(f"{'+' if x.holds else '-'} {x.name}: {x.evidence}", markup=False)
    screen.print(f"{data['seconds']:.1f} s; not shown: {len(data['verdict']['not_shown'])} points, at the end of the report", markup=False)
    print(f"written: {folder / 'report.html'}, {folder / 'diagnosis.json'}")


@contextmanager
def _progress(first: int) -> Iterator[Progress]:
    """Step, what runs and for how long, on a terminal's stderr; gone when done, and nothing elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda step, text: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn(), console=screen, transient=True) as bar:
        task = bar.add_task("reading", total=LAST - first + 1)
        yield lambda step, text: bar.update(task, completed=step - first, description=f"step {step}: {text}" if step < LAST else text)
