"""The study of arXiv 2510.04212, whose ablation table is repeated in small trainings."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Study
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.papers.failure_2510_04212.claims import controls, table
from roundscope.experiments.papers.failure_2510_04212.conditions import scale as scales
from roundscope.experiments.papers.failure_2510_04212.conditions.cases import AMPLIFIED
from roundscope.experiments.papers.failure_2510_04212.conditions.heads import chosen
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import FAILS
from roundscope.experiments.papers.failure_2510_04212.conditions.scale import Scale
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import (
    Entry,
    Trial,
    entries,
    key,
)
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import (
    launches as executables,
)
from roundscope.experiments.papers.failure_2510_04212.figures.pictures import FIGURES
from roundscope.experiments.papers.failure_2510_04212.results import Results, whole
from roundscope.experiments.papers.failure_2510_04212.static import table as static
from roundscope.experiments.papers.failure_2510_04212.table import TABLE
from roundscope.experiments.papers.failure_2510_04212.training import launch as training
from roundscope.experiments.papers.failure_2510_04212.words import (
    LEFT_OUT,
    PARTIAL,
    QUESTION,
    answer,
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(scales.QUICK if quick else scales.FULL)


def study(scale: Scale) -> Study[Results]:
    """Return the ablation table, its controls, and what needs no training, as a study."""
    return Study(
        name="qiu-yao",
        question=QUESTION,
        paper="arXiv 2510.04212, its ablation table in small trainings",
        launches=partial(launches, scale),
        results=partial(results, scale),
        answer=answer,
        claims=table.judged,
        figures=FIGURES,
        tables=(TABLE,),
        rules=(table.RULES, controls.RULES, PARTIAL),
        caveats=LEFT_OUT,
        about=_about(scale),
        config={k: v for k, v in asdict(scale.config).items() if k not in NAMED},
        scale=scale.name,
        static=static.static,
        parts=static.PARTS,
    )


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return launches of trials that are stored, then of those that are missing.

    The sets of heads come last.
    """
    there = store.keys()
    parts = (entries(scale), sets(scale, store))
    return [launch for part in parts for launch in _of_part(scale, part, there)]


def _of_part(scale: Scale, part: Sequence[Entry], there: set[str]) -> Iterator[Launch]:
    for kept in (True, False):
        trials = [e.trial for e in part if (key(scale, e.trial) in there) == kept]
        yield from (_launch(scale, group) for group in executables(scale, trials))


def _launch(scale: Scale, trials: Sequence[Trial]) -> Launch:
    names = {trial: key(scale, trial) for trial in trials}
    return Launch(
        title=f"{len(trials)} trainings",
        steps=trials[0].steps,
        config=asdict(scale.config) | {"rate": scale.rate},
        keys=tuple(names.values()),
        run=lambda progress: {
            names[run.condition]: run for run in training.launch(scale, trials, progress)
        },
    )


def sets(scale: Scale, store: Store) -> list[Entry]:
    """Return row 8, whose heads are chosen from the failing runs of case A.

    It is empty until all of those are stored.
    """
    wanted = {
        e.trial: key(scale, e.trial)
        for e in entries(scale)
        if (e.case, e.row) == (AMPLIFIED, FAILS) and not scale.core
    }
    found = store.read(wanted)
    if len(found) < len(wanted):
        return []
    failing = [run for run in found.values() if run.diverged is not None]
    return [e for c in scale.cases if c.name == AMPLIFIED for e in chosen(scale, c, failing)]


def results(scale: Scale, store: Store) -> Results | None:
    """Return the stored runs in whole rows; None without a case whose first two rows are stored."""
    wanted = [*entries(scale), *sets(scale, store)]
    names = {e.trial: key(scale, e.trial) for e in wanted}
    first = {name: trial for trial, name in reversed(names.items())}  # rows may share a run
    runs = store.read({trial: name for name, trial in first.items()})
    found = {t: runs[first[name]] for t, name in names.items() if first[name] in runs}
    told = whole(wanted, found)
    return Results(scale, told, found) if told else None


def _about(scale: Scale) -> dict[str, str]:
    c = scale.config
    return {
        "model": (
            f"{c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch"
            f" {c.batch}, byte-level, {c.data}"
        ),
        "training": (
            f"rate {scale.rate:g} after {c.warmup} steps of warm-up, {scale.steps} steps, "
            f"seeds {len(scale.seeds)}; layers, heads and factorial {scale.short} steps, "
            f"seeds {len(scale.few)}"
        ),
    }
