"""`roundscope reproduce PAPER`: the studies of the catalogue that are of papers."""

from importlib import import_module
from pathlib import Path

from roundscope.experiments.studies.catalogue import (
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
    """Reproduces a paper; the exit code of `framework.command.run`, and its errors.

    engine, jobs  of golden: how its cells are measured
    draw          nothing is trained: the page shows what the folder's results file holds

    Raises UsageError for a paper that is not known.
    """
    from roundscope.experiments.studies.framework import command

    entry = named(paper, PAPERS, "paper")
    asked = import_module(f"{__package__}.{MODULES[entry.name]}.study").asked
    study = asked(quick, engine, jobs) if entry is GOLDEN else asked(quick)
    chosen = [f"--{name}" for name, given in {"quick": quick, "draw": draw}.items() if given]
    said = " ".join(["roundscope", entry.command, *chosen])
    told = f"{said} --engine {engine}" if entry is GOLDEN else said
    folder = out or Path(entry.name)
    return command.run(study, out=folder, command=told, as_json=as_json, draw=draw)


MODULES = {  # paper -> folder of its study
    GOLDEN.name: "stability",
    QIU_YAO.name: "failure",
    RELEASED.name: "released",
    SU.name: "microscaling",
    MXFP8.name: "mxfp8",
    FA4.name: "fa4",
    TWO_LEVEL.name: "two_level",
}
