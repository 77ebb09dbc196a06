"""`roundscope reproduce mechanism`: arXiv 2510.04212, claims on which its mechanism rests.

The paper says that rows of X and of P K are alike over tokens and steps, so that the errors of
delta add up along one matrix R of low rank (claim 2), that they have one sign (figure 5a), and that
several maxima in a row announce a failure (appendix E.1). QK-norm and gated attention should break
the likeness, Llama's layers have it, and Muon fails as AdamW does (versions 2 to 4).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roundscope.experiments.catalogue import MECHANISM
from roundscope.experiments.framework import training
from roundscope.experiments.framework.counts import counted
from roundscope.experiments.framework.estimates import grouped
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Study, Table
from roundscope.experiments.framework.verdicts import number
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.papers.mechanism_2510_04212 import claims, figures, real
from roundscope.experiments.papers.mechanism_2510_04212.conditions import (
    EXACT,
    VARIANTS,
    Results,
    Scale,
    arms_of,
)
from roundscope.experiments.papers.mechanism_2510_04212.looks import ABOUT, NAMES, looking
from roundscope.experiments.train.config import Config

QUICK = Scale(
    name="quick",
    rate=6e-2,
    bits=3,
    seeds=4,
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, steps=300),
)
FULL = Scale(
    name="full",
    rate=2e-2,
    bits=3,
    seeds=4,
    config=Config(layers=2, heads=4, width=64, context=64, batch=16, warmup=100, steps=800),
)
CAVEATS = (
    "Small byte-level models; the paper looks at a head of GPT-2 small near its failure and at one"
    " of Llama-3.1-8B, and gives no threshold: ours are 0.5, for cosines and for the share of the"
    " first singular value. Every head counts alike. QK-norm, gates, Llama's layers and Muon run at"
    " AdamW's rate. Sums are native."
)
HEADS = (
    "layers",
    "arithmetic",
    "diverged [95 %], step",
    "cosine of\nX; P K; atoms",
    "first share of R;\nerrors permuted",
    "R over\nrandom signs",
    "rows with\nseveral maxima",
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale) -> Study[Results]:
    """Return the study at a scale."""
    c = scale.config
    return Study(
        name=MECHANISM.name,
        question=MECHANISM.question,
        paper="arXiv 2510.04212, what its mechanism rests on",
        launches=lambda store: launches(scale, store),
        results=lambda store: results(scale, store),
        answer=claims.answer,
        claims=claims.judged,
        figures=figures.FIGURES,
        tables=(TABLE,),
        rules=claims.RULES,
        caveats=CAVEATS,
        about={
            "model": f"{in_words(c)}; and {', '.join(list(VARIANTS)[1:])}",
            "training": (
                f"rate {scale.rate:g} after {c.warmup} steps of warm-up, {c.steps} steps,"
                f" {scale.seeds} seeds"
            ),
        },
        config=unnamed(c),
        scale=scale.name,
        static=real.static,
    )


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return the launches of all kinds of layers; each has a look of its own."""
    return [
        launch
        for config, arms in arms_of(scale).items()
        for launch in training.launches(store, config, arms, look=looking(), about=ABOUT)
    ]


def results(scale: Scale, store: Store) -> Results | None:
    """Return the complete conditions, those of a kind of layers only beside its FP32; or None."""
    runs = grouped(
        ((c.variant, c.arithmetic), run)
        for config, arms in arms_of(scale).items()
        for c, run in training.read(store, config, arms, about=ABOUT).items()
    )
    whole = {at: own for at, own in runs.items() if len(own) == scale.seeds}
    found = {at: own for at, own in whole.items() if (at[0], EXACT) in whole}
    return Results(scale, found) if found else None


def records(r: Results) -> Sequence[Mapping[str, object]]:
    """Return a record for each run: the median of each column over its looks."""
    return [
        {
            "layers": variant,
            "arithmetic": arithmetic,
            "seed": run.seed,
            "diverged": run.diverged,
            "loss": run.loss,
            **{name: r.middle(run, name) for name in NAMES},
        }
        for (variant, arithmetic), runs in r.by.items()
        for run in runs
    ]


def rows(r: Results) -> Iterator[list[str]]:
    """Yield a line for each kind of layers and arithmetic: medians over looks, means over seeds."""
    for (variant, arithmetic), runs in r.by.items():

        def shown(name: str, runs: Any = runs) -> str:
            return number(r.estimate(runs, name).mean)

        yield [
            variant,
            arithmetic,
            counted(runs),
            "; ".join(map(shown, ("x", "pk", "atom"))),
            "; ".join(map(shown, ("first", "shuffled"))),
            shown("random"),
            shown("tied"),
        ]


TABLE = Table(
    name="conditions",
    title="Every kind of layers and arithmetic",
    heads=HEADS,
    rows=rows,
    records=records,
    note="Medians over looks after the warm-up and before the divergence, means over seeds.",
    shown=tuple(range(len(HEADS))),
    grouped=True,
)
