"""`roundscope dose`: runs what is missing, launch by launch, then judges, draws and prints."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.dose.arms import NAMED, Dose, doses, launches
from roundscope.experiments.studies.dose.cases import Found, Topic
from roundscope.experiments.studies.dose.results import Results
from roundscope.experiments.studies.dose.scale import Scale, scale, seeds_of
from roundscope.experiments.train.config import Config

INTERRUPTED = 130


def run(words: Sequence[str], *, quick: bool, out: Path, seeds: str | None, study: str | None, as_json: bool) -> int:
    """Writes dose.sqlite and the study's page and data into `out`. The exit code: 0, or 130 after Ctrl-C, when launches done are kept.

    study   None: report.html and dose.json of one rounded event; else a name of `topics`, and NAME.html and NAME.json
    Raises UsageError before anything is computed, StorageError for a folder that cannot be used now.
    """
    from roundscope.experiments.compile_cache import keep_compilations
    from roundscope.experiments.studies.dose.store import opened
    from roundscope.experiments.studies.dose.topics import topic

    keep_compilations()
    asked = scale(words, quick=quick, seeds=seeds) if study is None else topic(study, words, quick=quick, seeds=seeds_of(seeds))
    wanted = doses(asked) if isinstance(asked, Scale) else asked.doses
    groups = launches(asked.config, wanted)
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with opened(out) as store:
        try:
            ran = _measure(asked.config, groups, store, ties=isinstance(asked, Topic) and asked.ties)
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted; launches that were done are kept, and the same command goes on")
            return INTERRUPTED
        found, devices = store.read(asked.config, wanted), store.devices()
    options = [*(["--study", study] if study else []), *(["--quick"] if quick else []), *(["--seeds", seeds] if seeds else [])]
    command = " ".join(["roundscope dose", *options, *words])
    about = {"command": command, "seconds": round(time.perf_counter() - began, 1), "launches": len(groups), "ran": ran, "devices": devices}
    if isinstance(asked, Scale):
        _tell(asked, Results(found[dose] for dose in wanted), about, out, as_json)
    else:
        _tell_topic(Found(asked, [found[dose] for dose in wanted]), about, out / f"{study}.html", as_json)
    return 0


def _measure(config: Config, groups: Sequence[Sequence[Dose]], store: Any, *, ties: bool) -> int:
    """Runs and keeps the doses that are not there, launch by launch; how many launches ran."""
    from roundscope.experiments.results.machine import device
    from roundscope.experiments.studies.dose.run import launch

    missing = [rest for group in groups if (rest := _missing(store.read(config, group), group))]
    for number, group in enumerate(missing):
        with bar(f"launch {number + 1} of {len(missing)}: {len(group)} arms", group[0].steps) as progress:
            store.add(config, launch(config, group, progress, ties), device("xla"))
    return len(missing)


def _missing(found: Any, group: Sequence[Dose]) -> list[Dose]:
    return [dose for dose in group if dose not in found]


def _tell(asked: Scale, results: Any, about: dict[str, Any], out: Path, as_json: bool) -> None:
    """report.html, dose.json, and the answer, points and verdicts to stdout."""
    from roundscope.experiments.studies.dose import report, table
    from roundscope.experiments.studies.dose.claims import judged
    from roundscope.experiments.studies.dose.words import QUESTION, answer

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


def _tell_topic(found: Found, about: dict[str, Any], page: Path, as_json: bool) -> None:
    """The page, the data beside it, and answer and cases to stdout."""
    from roundscope.experiments.studies.dose import topics

    told = topics.data(found, about)
    page.write_text(topics.html(found, told), encoding="utf-8")
    page.with_suffix(".json").write_text(json.dumps(plain(told), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(told)
    else:
        topics.show(found, told, page)
