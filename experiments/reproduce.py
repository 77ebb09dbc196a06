"""`roundscope reproduce PAPER`: the studies of the catalogue that test the claims of a paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundscope.experiments.catalogue import (
    ALARM,
    FA4,
    GOLDEN,
    MXFP8,
    PAPERS,
    QIU_YAO,
    RELEASED,
    SU,
    TWO_LEVEL,
    named,
)

if TYPE_CHECKING:
    from roundscope.experiments.framework.study import Study


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
    """Reproduce a paper. The exit code and the errors are those of `framework.command.run`.

    engine, jobs  how the cells of the study `golden` are measured; other studies ignore them
    draw          whether to train nothing and to show what the folder's results file holds

    Raises UsageError for a paper that is not known.
    """
    from roundscope.experiments.framework import command

    entry = named(paper, PAPERS, "paper")
    study = study_of(entry.name, quick=quick, engine=engine, jobs=jobs)
    chosen = [f"--{name}" for name, given in {"quick": quick, "draw": draw}.items() if given]
    words = " ".join(["roundscope", entry.command, *chosen])
    line = f"{words} --engine {engine}" if entry is GOLDEN else words
    folder = out or Path(entry.name)
    return command.run(study, out=folder, command=line, as_json=as_json, draw=draw)


def study_of(
    name: str, *, quick: bool, engine: str = "numpy", jobs: int | None = None
) -> "Study[Any]":
    """Return the study of a paper by its name, at the scale of --quick or in full.

    It alone is imported. Raises UsageError for an engine or a number of jobs that cannot be used.
    """
    if name == GOLDEN.name:
        from roundscope.experiments.papers.stability_2405_02803.study import asked as of_golden

        return of_golden(quick, engine, jobs)
    if name == QIU_YAO.name:
        from roundscope.experiments.papers.failure_2510_04212.study import asked as of_qiu_yao

        return of_qiu_yao(quick)
    if name == RELEASED.name:
        from roundscope.experiments.papers.released_2510_04212.study import asked as of_released

        return of_released(quick)
    if name == SU.name:
        from roundscope.experiments.papers.microscaling_2506_20752.study import asked as of_su

        return of_su(quick)
    if name == MXFP8.name:
        from roundscope.experiments.papers.mxfp8_2506_08027.study import asked as of_mxfp8

        return of_mxfp8(quick)
    if name == FA4.name:
        from roundscope.experiments.papers.fa4 import asked as of_fa4

        return of_fa4(quick)
    if name == TWO_LEVEL.name:
        from roundscope.experiments.papers.two_level import asked as of_two_level

        return of_two_level(quick)
    if name == ALARM.name:
        from roundscope.experiments.questions.alarm.study import asked as of_alarm

        return of_alarm(quick)
    raise ValueError(name)
