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
from roundscope.experiments.options import ReproduceOptions

if TYPE_CHECKING:
    from roundscope.experiments.framework.study import Study


def run(options: ReproduceOptions) -> int:
    """Reproduce a paper. The exit code and the errors are those of `framework.command.run`.

    Raises UsageError for a paper that is not known.
    """
    from roundscope.experiments.framework import command

    entry = named(options.paper, PAPERS, "paper")
    study = study_of(entry.name, quick=options.quick, engine=options.engine, jobs=options.jobs)
    chosen = [f"--{name}" for name in ("quick", "draw") if getattr(options, name)]
    words = " ".join(["roundscope", entry.command, *chosen])
    line = f"{words} --engine {options.engine}" if entry is GOLDEN else words
    folder = options.out or Path(entry.name)
    return command.run(study, out=folder, command=line, as_json=options.json, draw=options.draw)


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
        from roundscope.experiments.papers.fa4.study import asked as of_fa4

        return of_fa4(quick)
    if name == TWO_LEVEL.name:
        from roundscope.experiments.papers.two_level.study import asked as of_two_level

        return of_two_level(quick)
    if name == ALARM.name:
        from roundscope.experiments.questions.alarm.study import asked as of_alarm

        return of_alarm(quick)
    raise ValueError(name)
