"""`roundscope reproduce weights`: figures 7 and 8 of arXiv 2405.02803, without the other figures.

The same trainings as those of `reproduce golden`, in full with fewer seeds and pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from roundscope.experiments.catalogue import WEIGHTS
from roundscope.experiments.framework.estimates import factor
from roundscope.experiments.framework.study import Study, Table
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.papers.stability_2405_02803 import trainings
from roundscope.experiments.papers.stability_2405_02803.measuring import (
    FILE,
    FULL,
    QUICK,
    Results,
    measured,
)
from roundscope.experiments.papers.stability_2405_02803.study import RULES, drift_figure
from roundscope.experiments.papers.stability_2405_02803.trainings import METRICS, PAIRS, Training

OF_PAPER = ("flash", "weights", "precision", "bf16")
HEADS = ("pair", "seeds", "Wasserstein\nat the end", "largest difference\nat the end")
CAVEATS = (
    "A byte-level GPT on Python's sources; the paper's model makes images, and its sizes, steps and"
    " seeds are not published. A small distance is no proof of stability: neither metric sees the"
    " sign or the coherence of a difference."
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full: 2,000 steps, 4 seeds."""
    full = replace(FULL.training, seeds=4, pairs=OF_PAPER)
    return study("quick" if quick else "full", QUICK.training if quick else full)


def study(scale: str, t: Training) -> Study[Results]:
    """Return the study of these trainings."""
    c = t.config
    return Study(
        name=WEIGHTS.name,
        file=FILE,
        question=WEIGHTS.question,
        paper="arXiv 2405.02803, its figures 7 and 8",
        measure=partial(measured, cells=(), training=t, jobs=None),
        unit="trainings",
        answer=partial(answer, t=t),
        claims=lambda r: trainings.judged(r.drifts, t),
        source="figure",
        figures=[drift_figure(t)],
        tables=[Table(name="pairs", title="Pairs", heads=HEADS, rows=rows, records=records)],
        rules=(RULES,),
        caveats=CAVEATS,
        about={
            "model": f"{c.layers} layers, width {c.width}, context {c.context}, batch {c.batch}",
            "trainings": f"{'; '.join(t.versions)}: {c.steps} steps, each with {t.seeds} seeds",
        },
        scale=scale,
    )


def answer(r: Results, t: Training) -> str:
    """Return how far the weights of each pair are apart at the end."""
    ends = {
        pair: factor({seed: float(a.wasserstein[-1]) for seed, a in by_seed.items()})
        for pair, by_seed in r.drifts.items()
    }
    told = "; ".join(f"{' against '.join(PAIRS[p])} {interval(e)}" for p, e in ends.items())
    return f"Wasserstein distance of the weights after {t.steps[-1]} steps: {told}."


def rows(r: Results) -> Sequence[Sequence[str]]:
    """Return a line for each pair."""
    return [
        [
            " against ".join(PAIRS[pair]),
            str(len(by_seed)),
            *(
                interval(factor({s: float(getattr(a, m)[-1]) for s, a in by_seed.items()}))
                for m in METRICS
            ),
        ]
        for pair, by_seed in r.drifts.items()
    ]


def records(r: Results) -> Sequence[Mapping[str, object]]:
    """Return a record for each pair and seed: both distances at the end."""
    return [
        {"pair": pair, "seed": seed, **{m: float(getattr(a, m)[-1]) for m in METRICS}}
        for pair, by_seed in r.drifts.items()
        for seed, a in by_seed.items()
    ]
