"""`roundscope reproduce su`: runs the launches that are missing, then judges, draws and prints."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.framework.verdicts import Verdict
from roundscope.experiments.studies.microscaling.scale import FULL, QUICK, Scale

INTERRUPTED = 130


def run(*, quick: bool, out: Path, as_json: bool) -> int:
    """Writes proxy.sqlite, report.html and su.json into `out`. The exit code: 0, or 130 after Ctrl-C.

    After Ctrl-C launches done are kept, and told: the page then says what is missing.
    Raises UsageError before anything is computed, StorageError for a folder that cannot be used now.
    """
    from roundscope.experiments.compile_cache import keep_compilations
    from roundscope.experiments.studies.microscaling.found import read
    from roundscope.experiments.studies.proxy.store import opened

    keep_compilations()
    scale = QUICK if quick else FULL
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"command": "roundscope reproduce su" + (" --quick" if quick else "")}
    began = time.perf_counter()
    with opened(out) as store:
        try:
            about["ran"], code, static = measured(scale, store, out), 0, _static()
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted; launches that were done are kept, and the same command goes on")
            code, static = INTERRUPTED, []
            about["there"] = sum(_there(store, launch) for launch in planned(scale, store))
        found = read(scale, store)
        about |= {"launches": len(planned(scale, store)), "devices": store.devices(), "seconds": round(time.perf_counter() - began, 1)}
    if found.trained:
        _tell(scale, found, static, about, out, as_json)
    return code


def planned(scale: Scale, store: Any) -> list[Any]:
    """All launches in their order, those of interventions if the base has said where it diverges."""
    from roundscope.experiments.studies.microscaling import found, launches

    parted = launches.interventions(scale, found.starts(scale, found.read(scale, store)))
    return [*launches.base(scale), *parted, *launches.others(scale)]


def measured(scale: Scale, store: Any, out: Path) -> int:
    """Runs and keeps what is not there, launch by launch, the base first; how many ran."""
    from roundscope.experiments.studies.microscaling import launches

    return _run(scale, launches.base(scale), store, out) + _run(scale, planned(scale, store), store, out)


def _run(scale: Scale, wanted: Sequence[Any], store: Any, out: Path) -> int:
    from roundscope.experiments.results.machine import device
    from roundscope.experiments.studies.microscaling import launches

    missing = [launch for launch in wanted if not _there(store, launch)]
    for number, launch in enumerate(missing):
        with bar(f"launch {number + 1} of {len(missing)}: {len(launch.arms)} arms", launch.config.steps) as progress:
            store.add(launch.config, launches.ran(scale, launch, out, progress), device("xla"))
    return len(missing)


def _there(store: Any, launch: Any) -> bool:
    return len(store.read(launch.config, launch.arms)) == len(launch.arms)


def _static() -> list[Verdict]:
    """Verdicts that need no training."""
    from roundscope.experiments.studies.microscaling import static

    with bar("without training", 1):
        return static.judged()


def _tell(scale: Scale, found: Any, static: Sequence[Verdict], about: dict[str, Any], out: Path, as_json: bool) -> None:
    """report.html, su.json, and the answer and verdicts to stdout."""
    from roundscope.experiments.studies.microscaling import report, table
    from roundscope.experiments.studies.microscaling.claims import judged
    from roundscope.experiments.studies.microscaling.words import QUESTION, answer

    verdicts = judged(found, scale, static)
    data = {
        "question": QUESTION, "answer": answer(found, scale), "verdicts": plain(verdicts), "arms": table.data(found, scale),
        "scale": scale.name, "config": asdict(scale.base.config), "run": about,
    }  # fmt: skip
    (out / "report.html").write_text(report.html(found, scale, verdicts, data), encoding="utf-8")
    (out / "su.json").write_text(json.dumps(plain(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        table.show(verdicts, data, out)
