"""`roundscope reproduce PAPER`: the studies of the catalogue that are of papers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from roundscope.experiments.studies.catalogue import FA4, GOLDEN, MXFP8, PAPERS, QIU_YAO, RELEASED, SU, TWO_LEVEL, named


def run(
    paper: str,
    *,
    quick: bool,
    out: Path | None,
    engine: str,
    jobs: int | None,
    as_json: bool,
    draw: bool = False,
) -> int:
    """Reproduces a paper; the exit code of `framework.command.run`, and its errors.

    engine, jobs  of golden: how its cells are measured
    draw          nothing is trained: the page shows what the folder's results file holds

    Raises UsageError for a paper that is not known.
    """
    from roundscope.experiments.studies.framework import command

    entry = named(paper, PAPERS, "paper")
    study = STUDIES[entry.name](quick, engine, jobs)
    chosen = [f"--{name}" for name, given in {"quick": quick, "draw": draw}.items() if given]
    said = " ".join(["roundscope", entry.command, *chosen])
    told = f"{said} --engine {engine}" if entry is GOLDEN else said
    folder = out or Path(entry.name)
    return command.run(study, out=folder, command=told, as_json=as_json, draw=draw)


def _golden(quick: bool, engine: str, jobs: int | None) -> Any:
    from roundscope.experiments.studies.stability.study import asked

    return asked(quick, engine, jobs)


def _qiu_yao(quick: bool, *_: Any) -> Any:
    from roundscope.experiments.studies.failure.study import asked

    return asked(quick)


def _released(quick: bool, *_: Any) -> Any:
    from roundscope.experiments.studies.released.study import asked

    return asked(quick)


def _su(quick: bool, *_: Any) -> Any:
    from roundscope.experiments.studies.microscaling.study import asked

    return asked(quick)


def _mxfp8(quick: bool, *_: Any) -> Any:
    from roundscope.experiments.studies.mxfp8.study import asked

    return asked(quick)


def _fa4(quick: bool, *_: Any) -> Any:
    from roundscope.experiments.studies.fa4.study import asked

    return asked(quick)


def _two_level(quick: bool, *_: Any) -> Any:
    from roundscope.experiments.studies.two_level.study import asked

    return asked(quick)


STUDIES: dict[str, Callable[[bool, str, int | None], Any]] = {
    GOLDEN.name: _golden,
    QIU_YAO.name: _qiu_yao,
    RELEASED.name: _released,
    SU.name: _su,
    MXFP8.name: _mxfp8,
    FA4.name: _fa4,
    TWO_LEVEL.name: _two_level,
}
