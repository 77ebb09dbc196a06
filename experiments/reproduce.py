"""`roundscope reproduce PAPER`: the studies of the catalogue that test the claims of a paper."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundscope.experiments import catalogue
from roundscope.experiments.options import ReproduceOptions
from roundscope.tools.errors import bad

if TYPE_CHECKING:
    from roundscope.experiments.framework.study import Study


def run(options: ReproduceOptions) -> int:
    """Reproduce a paper; the exit code is that of `framework.command.run`. Raises UsageError."""
    from roundscope.experiments.framework import command

    entry = catalogue.named(options.paper, catalogue.PAPERS, "paper")
    if options.jobs is not None and options.jobs < 1:
        raise bad("--jobs", options.jobs, "give 1 or more")
    study = study_of(entry.name, quick=options.quick, engine=options.engine, jobs=options.jobs)
    chosen = [f"--{name}" for name in ("quick", "draw") if getattr(options, name)]
    words = " ".join(["roundscope", entry.command, *chosen])
    line = f"{words} --engine {options.engine}" if entry is catalogue.GOLDEN else words
    folder = options.out or Path(entry.name)
    jobs = (options.jobs or 1) if entry is catalogue.LOWBIT else 1
    return command.run(
        study, out=folder, command=line, as_json=options.json, draw=options.draw, jobs=jobs
    )


def study_of(
    name: str, *, quick: bool, engine: str = "numpy", jobs: int | None = None
) -> "Study[Any]":
    """Return a paper's study by name, imported here; engine and jobs may raise UsageError."""
    from roundscope.experiments.papers import fa4, two_level
    from roundscope.experiments.papers.failure_2510_04212 import study as failure
    from roundscope.experiments.papers.gpt2_2510_04212 import study as gpt2
    from roundscope.experiments.papers.mechanism_2510_04212 import study as mechanism
    from roundscope.experiments.papers.microscaling_2506_20752 import study as microscaling
    from roundscope.experiments.papers.mxfp8_2506_08027 import study as mxfp8
    from roundscope.experiments.papers.released_2510_04212 import study as released
    from roundscope.experiments.papers.stability_2405_02803 import long
    from roundscope.experiments.papers.stability_2405_02803 import study as stability
    from roundscope.experiments.questions.alarm import study as alarm
    from roundscope.experiments.questions.fp4_rules import study as fp4_rules
    from roundscope.experiments.questions.lowbit import study as lowbit
    from roundscope.experiments.questions.truncation import study as truncation

    asked: dict[str, Callable[[bool], Study[Any]]] = {
        catalogue.GOLDEN.name: lambda quick: stability.asked(quick, engine, jobs),
        catalogue.LONG.name: lambda quick: long.asked(quick, engine, jobs),
        catalogue.QIU_YAO.name: failure.asked,
        catalogue.RELEASED.name: released.asked,
        catalogue.MECHANISM.name: mechanism.asked,
        catalogue.GPT2.name: gpt2.asked,
        catalogue.SU.name: microscaling.asked,
        catalogue.MXFP8.name: mxfp8.asked,
        catalogue.FA4.name: fa4.asked,
        catalogue.TWO_LEVEL.name: two_level.asked,
        catalogue.ALARM.name: alarm.asked,
        catalogue.FP4_RULES.name: fp4_rules.asked,
        catalogue.LOWBIT.name: lowbit.asked,
        catalogue.TRUNCATION.name: truncation.asked,
    }
    return asked[name](quick)
