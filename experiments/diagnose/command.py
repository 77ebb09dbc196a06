"""`roundscope diagnose`: tensors in; a verdict, report.html and diagnosis.json out."""

import json as json_text
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from experiments.diagnose.findings import Findings, Progress, diagnose
from experiments.errors import UsageError, bad
from experiments.output import console, plain, print_json
from experiments.tensors import read_layers, sample_path
from experiments.trace_options import Request, request

FIRST, LAST = 3, 7  # steps of the chain from tensors; the last is the writing of the report


def run(source: Path | None, *, sample: bool, layer: str | None, plan: str, causal: bool, out: Path | None, as_json: bool) -> None:
    """Diagnose a file's layers. Raises UsageError for bad usage."""
    if (source is None) == (not sample):
        raise UsageError(f"RUN_OR_TENSORS {'and --sample are both given: choose one' if sample else 'is missing: give one, or --sample'}")
    path = sample_path() if source is None else source
    if path.is_dir():
        raise bad("RUN_OR_TENSORS", str(path), "is a folder; runs cannot be replayed here yet, give a file with q, k, v and do")
    asked = _request(plan, causal)
    layers = read_layers(path, layer=layer)
    folder = out if out is not None else Path(f"diagnose-{path.stem}-{re.sub(r'[^A-Za-z0-9_.=-]+', '-', plan)}")
    if folder.exists() and not folder.is_dir():
        raise bad("--out", str(folder), "is a file; name a folder")
    start = time.perf_counter()
    with _progress() as progress, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = diagnose(layers, asked, path.name, progress)
        progress(LAST, "report")
        data = _written(found, folder, start)
    if as_json:
        print_json(data)
    else:
        _shown(found, folder, data)


def _request(plan: str, causal: bool) -> Request:
    return request(
        plan=plan, against="exact", sets=[], inject=[], record=[], engine="numpy", seed=0, block_q=128, block_k=128, scale=None,
        causal=causal,
    )  # fmt: skip


def _written(found: Findings, folder: Path, start: float) -> dict[str, Any]:
    from experiments.diagnose import data, report
    from experiments.diagnose.steps import steps

    made = steps(found)
    document = plain(data.document(found, time.perf_counter() - start))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(report.html(found, made, document), encoding="utf-8")
    (folder / "diagnosis.json").write_text(json_text.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return document


def _shown(found: Findings, folder: Path, data: dict[str, Any]) -> None:
    from experiments.diagnose import words

    screen = console()
    screen.print(f"verdict: {found.verdict.kind}", style="bold", markup=False)
    screen.print(words.headline(found), markup=False)
    for x in found.verdict.links:
        screen.print(f"{'+' if x.holds else '-'} {x.name}: {x.evidence}", markup=False)
    screen.print(f"{data['seconds']:.1f} s; not shown: {len(data['verdict']['not_shown'])} points, at the end of the report", markup=False)
    print(f"written: {folder / 'report.html'}, {folder / 'diagnosis.json'}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Step, what runs and for how long, on a terminal's stderr; gone when done, and nothing elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda step, text: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn(), console=screen, transient=True) as bar:
        task = bar.add_task("reading", total=LAST - FIRST + 1)
        yield lambda step, text: bar.update(task, completed=step - FIRST, description=f"step {step}: {text}" if step < LAST else text)
