"""The loop of a study: launches that are missing are run and stored, one after the other."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from roundscope.experiments.framework.store import Store, is_there, opened
from roundscope.experiments.framework.study import Launch, Outcome, R, Study
from roundscope.tools.report.progress import bar

P = TypeVar("P")  # a point of a study that keeps no file


def measured(study: Study[R], out: Path, draw: bool) -> tuple[Outcome, R | None]:
    """Run a study in a folder, or with `draw` only read it; return the outcome and the results.

    The results are None where there are none.
    """
    if study.measure is not None:
        return study.measure(out, draw)
    with opened(out, study.file or study.name) as store:
        outcome = counted(study, store, 0) if draw else measure(study, store)
        return outcome, study.results(store)


def holds_results(study: Study[Any], out: Path) -> bool:
    """Return whether a folder holds something of a study to draw; opening it would make a file."""
    if study.measure is not None:
        return any(out.glob(study.kept))
    return is_there(out, study.file or study.name)


def measure(study: Study[Any], store: Store) -> Outcome:
    """Run the launches that are missing; after Ctrl-C, those that were done are kept."""
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
    """Return the launches of which some run is not stored."""
    there = store.keys()
    return [launch for launch in study.launches(store) if not there.issuperset(launch.keys)]


def counted(study: Study[Any], store: Store, ran: int, *, interrupted: bool = False) -> Outcome:
    """Return the outcome: what is stored by now."""
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
    from roundscope.tools.results.machine import device

    with bar(title, launch.steps) as progress:
        runs = launch.run(progress)
    store.add(runs, launch.config, device("xla"))
    if left := set(launch.keys) - store.keys():
        raise RuntimeError(f"{launch.title}: {len(left)} runs that it names were not computed")


def computed(name: str, total: int, points: Iterable[P]) -> tuple[Outcome, list[P] | None]:
    """Return the points of a study that takes seconds and keeps no file; none after Ctrl-C."""
    done: list[P] = []
    try:
        with bar(name, total) as progress:
            for point in points:
                done.append(point)
                progress(len(done))
    except KeyboardInterrupt:
        return Outcome(launches=total, there=0, ran=len(done), interrupted=True), None
    return Outcome(launches=total, there=total, ran=total, devices=["cpu"]), done
