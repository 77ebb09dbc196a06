"""`roundscope reproduce PAPER`: the studies of the catalogue that test the claims of a paper."""

from importlib import import_module
from pathlib import Path

from roundscope.experiments.studies.catalogue import (
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
    from roundscope.experiments.studies.framework import command

    entry = named(paper, PAPERS, "paper")
    asked = import_module(f"{__package__}.{MODULES[entry.name]}.study").asked
    study = asked(quick, engine, jobs) if entry is GOLDEN else asked(quick)
    chosen = [f"--{name}" for name, given in {"quick": quick, "draw": draw}.items() if given]
    words = " ".join(["roundscope", entry.command, *chosen])
    line = f"{words} --engine {engine}" if entry is GOLDEN else words
    folder = out or Path(entry.name)
    return command.run(study, out=folder, command=line, as_json=as_json, draw=draw)


MODULES = {  # paper -> folder of its study
    GOLDEN.name: "stability",
    QIU_YAO.name: "failure",
    RELEASED.name: "released",
    SU.name: "microscaling",
    MXFP8.name: "mxfp8",
    FA4.name: "fa4",
    TWO_LEVEL.name: "two_level",
    ALARM.name: "alarm",
}
