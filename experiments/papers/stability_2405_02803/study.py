"""`roundscope reproduce golden`: the claims of arXiv 2405.02803 as a `Study`, and its run."""

from functools import partial

from roundscope.experiments.catalogue import GOLDEN
from roundscope.experiments.framework.study import Study
from roundscope.experiments.papers.stability_2405_02803.claims import judged
from roundscope.experiments.papers.stability_2405_02803.conditions import cells
from roundscope.experiments.papers.stability_2405_02803.figures import figures
from roundscope.experiments.papers.stability_2405_02803.measuring import FILE, measured
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import FULL, QUICK, Scale
from roundscope.experiments.papers.stability_2405_02803.tables import tables
from roundscope.experiments.papers.stability_2405_02803.words import (
    CAUTION,
    EMULATIONS,
    RULES,
    answer,
)
from roundscope.tools.errors import bad
from roundscope.tools.sweep.conditions.axes import ENGINES


def asked(quick: bool, engine: str, jobs: int | None) -> Study[Results]:
    """Return the study at the scale of --quick, or in full.

    Raises UsageError for an engine or a number of jobs that cannot be used.
    """
    if engine not in ENGINES:
        raise bad("--engine", engine, f"use {' or '.join(ENGINES)}")
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    return study(QUICK if quick else FULL, engine, jobs)


def study(scale: Scale, engine: str, jobs: int | None = None) -> Study[Results]:
    """Return the study at a scale; jobs: worker processes, None for as many as cores."""
    parts, t = cells(scale, engine), scale.training
    unique = {cell.key: cell for own in parts.values() for cell in own}
    emulations = "; ".join(f"{name}: {words}" for name, words in EMULATIONS.items())
    return Study(
        name="verdicts",
        file=FILE,
        question=GOLDEN.question,
        paper=GOLDEN.paper,
        measure=partial(measured, cells=list(unique.values()), training=t, jobs=jobs),
        unit="cells and trainings",
        answer=partial(answer, scale=scale),
        claims=partial(judged, scale=scale),
        source="figure",
        figures=figures(scale),
        tables=tables(scale, parts),
        caution=CAUTION,
        rules=(RULES, f"Emulations: {emulations}."),
        about={
            "deviations": "from unfused attention in binary64, the golden value",
            "trainings": f"{'; '.join(t.versions)}: each with {t.seeds} seeds",
        },
        config={"engine": engine},
        scale=scale.name,
    )
