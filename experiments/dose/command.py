"""`roundscope dose`: runs the launches that are missing, then judges, draws and prints."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.dose.arms import NAMED, Dose, doses, launches
from experiments.dose.scale import Scale, scale
from experiments.errors import bad
from experiments.output import console, plain, print_json

INTERRUPTED = 130


def run(words: Sequence[str], *, quick: bool, out: Path, seeds: str | None, as_json: bool) -> int:
    """Writes dose.sqlite, report.html and dose.json into `out`. The exit code: 0, or 130 after Ctrl-C, when launches done are kept.

    Raises UsageError before anything is computed, StorageError for a folder that cannot be used now.
    """
    from experiments.compile_cache import keep_compilations
    from experiments.dose.results import Results
    from experiments.dose.store import opened

    keep_compilations()
    asked = scale(words, quick=quick, seeds=seeds)
    wanted = doses(asked)
    groups = launches(asked.config, wanted)
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with opened(out) as store:
        try:
            ran = _measure(asked, groups, store)
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted; launches that were done are kept, and the same command goes on")
            return INTERRUPTED
        found, devices = store.read(asked.config, wanted), store.devices()
    command = " ".join(["roundscope dose", *(["--quick"] if quick else []), *(["--seeds", seeds] if seeds else []), *words])
    about = {"command": command, "seconds": round(time.perf_counter() - began, 1), "launches": len(groups), "ran": ran, "devices": devices}
    _tell(asked, Results(found[dose] for dose in wanted), about, out, as_json)
    return 0


def _measure(asked: Scale, groups: Sequence[Sequence[Dose]], store: Any) -> int:
    """Runs and keeps what is not there, launch by launch; how many ran."""
    from experiments.dose.run import launch
    from experiments.sweep.machine import device

    missing = [group for group in groups if len(store.read(asked.config, group)) < len(group)]
    for number, group in enumerate(missing):
        with _progress(f"launch {number + 1} of {len(missing)}: {len(group)} arms", group[0].steps) as progress:
            store.add(asked.config, launch(asked.config, group, progress), device("xla"))
    return len(missing)


@contextmanager
def _progress(text: str, steps: int) -> Iterator[Callable[[int], None]]:
    """Steps done, on a terminal's stderr; gone when done, and nothing elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(text, total=steps)
        yield lambda done: bar.update(task, completed=done)


def _tell(asked: Scale, results: Any, about: dict[str, Any], out: Path, as_json: bool) -> None:
    """report.html, dose.json, and the answer, points and verdicts to stdout."""
    from experiments.dose import report, table
    from experiments.dose.claims import judged
    from experiments.dose.words import QUESTION, answer

    verdicts = judged(results, asked)
    data = {
        "question": QUESTION, "answer": answer(results), "verdicts": plain(verdicts), "points": table.points(results),
        "scale": asked.name, "config": {k: v for k, v in asdict(asked.config).items() if k not in NAMED}, "run": about,
    }  # fmt: skip
    (out / "report.html").write_text(report.html(results, asked, verdicts, data), encoding="utf-8")
    (out / "dose.json").write_text(json.dumps(plain(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        table.show(verdicts, data, out)
