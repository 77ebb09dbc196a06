"""`roundscope reproduce qiu-yao`: runs the launches that are missing, then judges, draws and prints."""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.failure.cases import AMPLIFIED
from roundscope.experiments.studies.failure.heads import chosen
from roundscope.experiments.studies.failure.partial import whole
from roundscope.experiments.studies.failure.results import Results
from roundscope.experiments.studies.failure.rows import FAILS
from roundscope.experiments.studies.failure.scale import FULL, QUICK, Scale
from roundscope.experiments.studies.failure.trials import Entry, entries, launches
from roundscope.experiments.studies.framework.verdicts import Verdict
from roundscope.experiments.studies.framework.words import NAMED

INTERRUPTED = 130


def run(*, quick: bool, out: Path, as_json: bool) -> int:
    """Writes qiu-yao.sqlite, report.html and qiu-yao.json into `out`. The exit code: 0, or 130 after Ctrl-C.

    After Ctrl-C launches done are kept, and told if they complete a case's first two rows: the page then says what is missing.
    Raises UsageError before anything is computed, StorageError for a folder that cannot be used now.
    """
    from roundscope.experiments.compile_cache import keep_compilations
    from roundscope.experiments.studies.failure.store import opened

    keep_compilations()
    scale = QUICK if quick else FULL
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"command": "roundscope reproduce qiu-yao" + (" --quick" if quick else "")}
    began = time.perf_counter()
    with opened(out) as store:
        try:
            wanted, ran, of = measured(scale, store)
            static = _static()
        except KeyboardInterrupt:
            console(stderr=True).print("interrupted; launches that were done are kept, and the same command goes on")
            _tell_part(scale, store, about | {"seconds": _since(began)}, out, as_json)
            return INTERRUPTED
        found, devices = store.read(scale, [e.trial for e in wanted]), store.devices()
    about |= {"seconds": _since(began), "launches": of, "ran": ran, "devices": devices}
    _tell(scale, Results(wanted, found), static, about, out, as_json)
    return 0


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 1)


def _tell_part(scale: Scale, store: Any, about: dict[str, Any], out: Path, as_json: bool) -> None:
    """What launches done so far say, if anything."""
    fixed = entries(scale)
    sets = [] if scale.core else _sets(scale, fixed, store)
    found = store.read(scale, [e.trial for e in (*fixed, *sets)])
    told = whole([*fixed, *sets], found)
    if not told:
        return
    groups = [group for part in (fixed, sets) for group in launches(scale, [e.trial for e in part])]
    there = sum(len(store.read(scale, group)) == len(set(group)) for group in groups)
    cases = tuple(case for case in scale.cases if case.name in {e.case for e in told})
    about |= {"launches": len(groups), "there": there, "devices": store.devices()}
    _tell(replace(scale, cases=cases), Results(told, found), ([], []), about, out, as_json)


def measured(scale: Scale, store: Any) -> tuple[list[Entry], int, int]:
    """All entries, after the launches that were missing; how many ran, of how many. Row 8 comes last: it needs the failing runs."""
    wanted = entries(scale)
    ran, of = _measure(scale, wanted, store)
    sets = [] if scale.core else _sets(scale, wanted, store)
    more, of_sets = _measure(scale, sets, store) if sets else (0, 0)
    return [*wanted, *sets], ran + more, of + of_sets


def _sets(scale: Scale, wanted: Sequence[Entry], store: Any) -> list[Entry]:
    base = [e.trial for e in wanted if (e.case, e.row) == (AMPLIFIED, FAILS)]
    case = next(case for case in scale.cases if case.name == AMPLIFIED)
    return chosen(scale, case, [r for r in store.read(scale, base).values() if r.diverged is not None])


def _measure(scale: Scale, wanted: Sequence[Entry], store: Any) -> tuple[int, int]:
    """Runs and keeps what is not there, launch by launch; how many ran, of how many."""
    from roundscope.experiments.results.machine import device
    from roundscope.experiments.studies.failure.run import launch

    trials = [e.trial for e in wanted]
    there = store.read(scale, trials)
    missing = launches(scale, [trial for trial in trials if trial not in there])
    for number, group in enumerate(missing):
        with bar(f"launch {number + 1} of {len(missing)}: {len(group)} arms", group[0].steps) as progress:
            store.add(scale, launch(scale, group, progress), device("xla"))
    return len(missing), len(launches(scale, trials))


def _static() -> tuple[list[Verdict], list[Any]]:
    """Verdicts and pictures of what needs no failing run."""
    from roundscope.experiments.studies.failure.static import table as static

    with bar("without training", len(static.PARTS)) as progress:
        begun = itertools.count()
        verdicts = static.static_claims(lambda part: progress(next(begun)))
    return verdicts, static.static_pictures()


def _tell(scale: Scale, results: Results, static: tuple[list[Verdict], list[Any]], about: dict[str, Any], out: Path, as_json: bool) -> None:
    """report.html, qiu-yao.json, and the answer, rows and verdicts to stdout."""
    from roundscope.experiments.studies.failure import report, table
    from roundscope.experiments.studies.failure.claims import judged
    from roundscope.experiments.studies.failure.words import QUESTION, answer

    verdicts = [*judged(results, scale), *static[0]]
    data = {
        "question": QUESTION, "answer": answer(results, scale), "verdicts": plain(verdicts), "rows": table.data(results, scale),
        "scale": scale.name, "config": {k: v for k, v in asdict(scale.config).items() if k not in NAMED}, "run": about,
    }  # fmt: skip
    (out / "report.html").write_text(report.html(results, scale, verdicts, static[1], data), encoding="utf-8")
    (out / "qiu-yao.json").write_text(json.dumps(plain(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        table.show(verdicts, data, out)
