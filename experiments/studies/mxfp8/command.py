"""`roundscope reproduce mxfp8`: runs the launches that are missing, then judges, draws and prints."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.mxfp8.arms import proxy_arms, trials
from roundscope.experiments.studies.mxfp8.results import Results
from roundscope.experiments.studies.mxfp8.scale import FULL, QUICK, Scale

INTERRUPTED = 130


def run(*, quick: bool, out: Path, as_json: bool) -> int:
    """Writes mxfp8.sqlite, proxy.sqlite, report.html and mxfp8.json into `out`. The exit code: 0, or 130 after Ctrl-C, when launches done
    are kept and told if both models have any. Raises UsageError before anything is computed, StorageError for a folder that cannot be used.
    """
    from roundscope.experiments.compile_cache import keep_compilations

    keep_compilations()
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    return reproduced(QUICK if quick else FULL, out, as_json, "roundscope reproduce mxfp8" + (" --quick" if quick else ""))


def reproduced(scale: Scale, out: Path, as_json: bool, command: str) -> int:
    """The same at a scale."""
    from roundscope.experiments.studies.mxfp8.store import opened
    from roundscope.experiments.studies.proxy.store import opened as proxy_opened

    began, ran, interrupted = time.perf_counter(), [0], False
    with opened(out) as store, proxy_opened(out) as proxy:
        try:
            _measure(scale, store, proxy, ran)
        except KeyboardInterrupt:
            interrupted = True
            console(stderr=True).print("interrupted; launches that were done are kept, and the same command goes on")
        gpt = store.read(scale, [t for group in trials(scale) for t in group])
        arms = proxy.read(scale.proxy, [a for group in proxy_arms(scale) for a in group])
        devices = sorted({*store.devices(), *proxy.devices()})
    about = {
        "command": command, "launches": len(trials(scale)) + len(proxy_arms(scale)), "ran": ran[0], "devices": devices,
        "seconds": round(time.perf_counter() - began, 1), "interrupted": interrupted,
    }  # fmt: skip
    if gpt and arms:
        _tell(scale, Results(list(gpt.values()), list(arms.values())), about, out, as_json)
    return INTERRUPTED if interrupted else 0


def _measure(scale: Scale, store: Any, proxy: Any, ran: list[int]) -> None:
    """Runs and keeps what is not there, launch by launch, the proxy first; counts them in `ran`."""
    from roundscope.experiments.results.machine import device
    from roundscope.experiments.studies.mxfp8.launches import launch
    from roundscope.experiments.train.student.run import launch as proxy_launch

    for arms in proxy_arms(scale):
        if len(proxy.read(scale.proxy, arms)) < len(arms):
            with bar(f"proxy, lr {arms[0].lr:g}: {len(arms)} runs", scale.proxy.steps) as progress:
                proxy.add(scale.proxy, proxy_launch(scale.proxy, arms, progress), device("xla"))
            ran[0] += 1
    for own in trials(scale):
        if len(store.read(scale, own)) < len(own):
            with bar(f"GPT, lr {own[0].lr:g}: {len(own)} runs", scale.gpt.steps) as progress:
                store.add(scale, launch(scale, own, progress), device("xla"))
            ran[0] += 1


def _tell(scale: Scale, results: Results, about: dict[str, Any], out: Path, as_json: bool) -> None:
    """report.html, mxfp8.json, and the answer and verdicts to stdout."""
    from roundscope.experiments.studies.mxfp8 import report, table
    from roundscope.experiments.studies.mxfp8.claims import judged
    from roundscope.experiments.studies.mxfp8.words import QUESTION, answer

    verdicts = judged(results)
    data = {
        "question": QUESTION, "answer": answer(results), "verdicts": plain(verdicts), "arms": table.data(results), "scale": scale.name,
        "gpt": asdict(scale.gpt), "proxy": asdict(scale.proxy), "run": about,
    }  # fmt: skip
    (out / "report.html").write_text(report.html(results, scale, verdicts, data), encoding="utf-8")
    (out / "mxfp8.json").write_text(json.dumps(plain(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        table.show(verdicts, data, out)
