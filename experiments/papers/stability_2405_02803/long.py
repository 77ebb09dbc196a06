"""`roundscope reproduce long`: figure 5 of arXiv 2405.02803 to 8,192 tokens, figures 7 and 8.

Parts of `reproduce golden` at other sizes: three lengths with 6 seeds, and the trainings of the
paper's pairs with 4 seeds. Its results file is kept in docs/runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from roundscope.experiments.catalogue import LONG
from roundscope.experiments.framework.estimates import factor
from roundscope.experiments.framework.study import Study, Table
from roundscope.experiments.framework.verdicts import interval, not_here
from roundscope.experiments.papers.stability_2405_02803 import claims, trainings
from roundscope.experiments.papers.stability_2405_02803.measuring import (
    FILE,
    FULL,
    QUICK,
    Results,
    Scale,
    at,
    cells,
    measured,
)
from roundscope.experiments.papers.stability_2405_02803.study import (
    BEYOND,
    CAUTION,
    RULES,
    drift_figure,
    length_figure,
)
from roundscope.experiments.papers.stability_2405_02803.trainings import METRICS, PAIRS

OF_PAPER = ("flash", "weights", "precision", "bf16")
SHORT_LENGTHS = replace(QUICK, lengths=(128, 256, 512), seeds=6, fewer=6)
LONG_LENGTHS = replace(
    FULL,
    lengths=(512, 2048, 8192),
    training=replace(FULL.training, seeds=4, pairs=OF_PAPER),
    seeds=6,
    fewer=6,
)
HEADS = ("pair", "seeds", "Wasserstein\nat the end", "largest difference\nat the end")
CAVEATS = (
    "The trainings are of a byte-level GPT on Python's sources; the paper's model makes images, and"
    " its sizes, steps and seeds are not published."
)


def asked(quick: bool, engine: str = "numpy", jobs: int | None = None) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(SHORT_LENGTHS if quick else LONG_LENGTHS, engine, jobs)


def study(scale: Scale, engine: str, jobs: int | None) -> Study[Results]:
    """Return the study at a scale."""
    t, own = scale.training, cells(scale, engine)["sequence length (Fig. 5)"]
    return Study(
        name=LONG.name,
        file=FILE,
        question=LONG.question,
        paper="arXiv 2405.02803, its figures 5, 7 and 8",
        measure=partial(measured, cells=own, training=t, jobs=jobs),
        unit="cells and trainings",
        answer=partial(answer, scale=scale),
        claims=lambda r: [
            *(claims.figure_5(r, scale) if r.cells else ()),
            *(trainings.judged(r.drifts, t) if r.drifts else ()),
            *not_here(BEYOND),
        ],
        source="figure",
        figures=[length_figure(scale), drift_figure(t)],
        tables=[Table(name="pairs", title="Pairs", heads=HEADS, rows=rows, records=records)],
        caution=CAUTION,
        rules=(RULES,),
        caveats=CAVEATS,
        about={
            "deviations": f"{len(own)} cells, from unfused attention in binary64",
            "trainings": f"{'; '.join(t.versions)}: {t.config.steps} steps, {t.seeds} seeds each",
        },
        config={"engine": engine},
        scale=scale.name,
    )


def answer(r: Results, scale: Scale) -> str:
    """Return how the deviation grows, and how far the weights of each pair are apart at the end."""
    told = []
    longest, tile = scale.lengths[-1], scale.tile
    for name in ("ops:bf16", "fa2-bf16") if r.cells else ():
        points = claims.series(scale, name, "gaussian")
        grown = claims.growth(r, scale, points, "rel_max")
        own = r.values(at(name, (longest, scale.heads(longest)), tile), "rel_max")
        told.append(
            f"the largest deviation of {name} relative to the output is {interval(factor(own))} at"
            f" {longest} tokens and grows as T^{interval(grown)}"
        )
    ends = {
        pair: factor({seed: float(a.wasserstein[-1]) for seed, a in by_seed.items()})
        for pair, by_seed in r.drifts.items()
    }
    pairs = "; ".join(f"{' against '.join(PAIRS[p])} {interval(e)}" for p, e in ends.items())
    steps = scale.training.steps[-1]
    told += [f"the Wasserstein distance of weights after {steps} steps is {pairs}"] if ends else []
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in told)


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
