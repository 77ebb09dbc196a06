"""`roundscope reproduce PAPER`: the studies of the catalogue that are of papers."""

from collections.abc import Callable
from pathlib import Path

from roundscope.experiments.studies.catalogue import GOLDEN, MXFP8, PAPERS, QIU_YAO, SU, named


def run(
    paper: str,
    *,
    quick: bool,
    out: Path | None,
    engine: str,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Reproduces a paper; its study's exit code. Raises UsageError for one that is not known."""
    entry = named(paper, PAPERS, "paper")
    more = {"engine": engine, "jobs": jobs} if entry is GOLDEN else {}
    study = STUDIES[entry.name]()
    return study(quick=quick, out=out or Path(entry.name), as_json=as_json, **more)


def _golden() -> Callable[..., int]:
    from roundscope.experiments.studies.stability.study import run

    return run


def _qiu_yao() -> Callable[..., int]:
    from roundscope.experiments.studies.failure.command import run

    return run


def _su() -> Callable[..., int]:
    from roundscope.experiments.studies.microscaling.command import run

    return run


def _mxfp8() -> Callable[..., int]:
    from roundscope.experiments.studies.mxfp8.command import run

    return run


STUDIES = {GOLDEN.name: _golden, QIU_YAO.name: _qiu_yao, SU.name: _su, MXFP8.name: _mxfp8}
