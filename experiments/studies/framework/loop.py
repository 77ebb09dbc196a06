"""The loop of a study: launches that are missing run and are kept, one after the other."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from roundscope.experiments.report.progress import bar
from roundscope.experiments.studies.framework.store import Store, opened
from roundscope.experiments.studies.framework.study import Launch, Outcome, R, Study

P = TypeVar("P")  # a point of a study that keeps no file


def measured(study: Study[R], out: Path, draw: bool) -> tuple[Outcome, R | None]:
    """What came of a study in a folder, and its results, None without any; draw: nothing runs."""
    if study.measure is not None:
        return study.measure(out, draw)
    with opened(out, study.file or study.name) as store:
        outcome = counted(study, store, 0) if draw else measure(study, store)
        return outcome, study.results(store)


def measure(study: Study[Any], store: Store) -> Outcome:
    """Runs what is missing. After Ctrl-C, launches that were done are kept and told."""
    ran = 0
    try:
        while todo := missing(study, store):
            for number, launch in enumerate(todo):
                _run(launch, store, f"launch {number + 1} of {len(todo)}, {launch.title}")
                ran += 1
    except KeyboardInterrupt:
        return counted(study, store, ran, interrupted=True)
    return counted(study, store, ran)


def missing(study: Study[Any], store: Store) -> list[Launch]:
    """The launches of which a run is not there."""
    there = store.keys()
    return [launch for launch in study.launches(store) if not there.issuperset(launch.keys)]


def counted(study: Study[Any], store: Store, ran: int, *, interrupted: bool = False) -> Outcome:
    """What is there now."""
    launches, left = study.launches(store), len(missing(study, store))
    devices = store.devices(key for launch in launches for key in launch.keys)
    return Outcome(
        launches=len(launches),
        there=len(launches) - left,
        ran=ran,
        interrupted=interrupted,
        devices=devices,
    )


def _run(launch: Launch, store: Store, title: str) -> None:
    from roundscope.experiments.results.machine import device

    with bar(title, launch.steps) as progress:
        found = launch.run(progress)
    store.add(found, launch.config, device("xla"))
    if left := set(launch.keys) - store.keys():
        raise RuntimeError(f"{launch.title}: {len(left)} runs that it names were not made")


def computed(name: str, total: int, points: Iterable[P]) -> tuple[Outcome, list[P] | None]:
    """The points of a study that takes seconds and keeps no file; after Ctrl-C none."""
    found: list[P] = []
    try:
        with bar(name, total) as progress:
            for point in points:
                found.append(point)
                progress(len(found))
    except KeyboardInterrupt:
        return Outcome(launches=total, there=0, ran=len(found), interrupted=True), None
    return Outcome(launches=total, there=total, ran=total, devices=["cpu"]), found
