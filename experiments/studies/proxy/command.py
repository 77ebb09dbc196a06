"""`roundscope proxy`: runs what is missing of a study, then draws and prints."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.framework.command import INTERRUPTED
from roundscope.experiments.studies.proxy.studies import Study, study
from roundscope.experiments.train.student.arms import Arm, groups


def run(
    words: Sequence[str], *, name: str, own: Sequence[str], first: int | None, at: Sequence[str], seeds: str | None, quick: bool, out: Path,
    as_json: bool,
) -> int:  # fmt: skip
    """Writes proxy.sqlite, and the study's page and data, into `out`. The exit code: 0, or 130 after Ctrl-C, when launches done are kept.

    Raises UsageError before anything is computed, StorageError for a folder that cannot be used now.
    """
    from roundscope.experiments.compile_cache import keep_compilations
    from roundscope.experiments.studies.proxy.store import opened

    keep_compilations()
    asked = study(words, name=name, own=own, first=first, at=at, seeds=seeds, quick=quick)
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with opened(out) as store:
        try:
            ran = _measure(asked, store, out)
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted; launches that were done are kept, and the same command goes on")
            return INTERRUPTED
        found, devices = store.read(asked.config, asked.arms), store.devices()
    about = {
        "command": " ".join(["roundscope proxy", *_options(name, own, first, at, seeds, quick), *words]),
        "seconds": round(time.perf_counter() - began, 1), "runs": len(asked.arms), "ran": ran, "devices": devices,
    }  # fmt: skip
    _tell(asked, [found[arm] for arm in asked.arms], about, out / f"{asked.name}.html", as_json)
    return 0


def _options(name: str, own: Sequence[str], first: int | None, at: Sequence[str], seeds: str | None, quick: bool) -> list[str]:
    found = ["--study", name, *(["--quick"] if quick else []), *(["--seeds", seeds] if seeds else [])]
    found += ["--from", str(first)] if first is not None else []
    return found + [f"--arm {text!r}" for text in own] + [f"--at {text!r}" for text in at]


def _measure(asked: Study, store: Any, out: Path) -> int:
    """Runs and keeps what is not there, launch by launch; how many runs."""
    from roundscope.experiments.results.machine import device

    there = store.read(asked.config, asked.arms)
    missing = groups(asked.config, [arm for arm in asked.arms if arm not in there])
    for number, group in enumerate(missing):
        with bar(f"launch {number + 1} of {len(missing)}: {len(group)} runs", asked.config.steps) as progress:
            store.add(asked.config, _launched(asked, group, out, progress), device("xla"))
    return sum(map(len, missing))


def _launched(asked: Study, group: Sequence[Arm], out: Path, progress: Any) -> Any:
    from roundscope.experiments.train.student.begins import begin
    from roundscope.experiments.train.student.run import launch

    branches = asked.first is not None and all(arm.changes for arm in group)
    start = begin(asked.config, group, asked.first or 0, out, progress) if branches else None
    return launch(asked.config, group, progress, start)


def _tell(asked: Study, results: Sequence[Any], about: dict[str, Any], page: Path, as_json: bool) -> None:
    """The page, the data beside it, and answer and arms to stdout."""
    from roundscope.experiments.studies.proxy import report, table

    data = {
        "question": table.question(asked), "answer": table.answer(asked, results), "arms": table.points(results),
        "config": asdict(asked.config), "from": asked.first, "run": about,
    }  # fmt: skip
    page.write_text(report.html(asked, results, data), encoding="utf-8")
    page.with_suffix(".json").write_text(json.dumps(plain(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        table.show(data, results, page)
