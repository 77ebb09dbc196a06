"""`roundscope reproduce lowbit`: does a centered delta replace matched recomputation and a good dS?

Recipes of attention in few bits (`recipes`) train a small GPT with the cures of the literature,
with ours, and with shams of ours; all of a seed have the same weights at the start and the same
batches, so losses are compared in pairs. Without training, the same arithmetics are measured on
real tensors (`static`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from roundscope.experiments.catalogue import LOWBIT
from roundscope.experiments.framework.counts import counted, diverged, share, signs, times
from roundscope.experiments.framework.estimates import Estimate, mean, positive
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge, verdict_on
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.questions.lowbit import static
from roundscope.experiments.questions.lowbit import trainings as t
from roundscope.experiments.questions.lowbit.comparisons import (
    MARGIN,
    TITLES,
    above_bf16,
    gaps,
    is_calm,
    pooled,
    rates,
    recipes,
    told,
)
from roundscope.experiments.questions.lowbit.pictures import draw, forest
from roundscope.experiments.questions.lowbit.recipes import (
    BOTH,
    BOTH_OF_P,
    CENTRED,
    CENTRED_HIGH,
    CENTRED_MATCHED,
    CURES,
    HIGH,
    MATCHED,
    NONE,
    OWN,
    OWN_HIGH,
    RECIPES,
    ROWS,
    ROWS_MATCHED,
    SIGNS,
    SIGNS_MATCHED,
)
from roundscope.experiments.questions.lowbit.trainings import Results, Runs
from roundscope.tools.results.run import Run


class Claim(NamedTuple):
    """That a cure is as good as another (limit MARGIN), or better (limit 0)."""

    text: str
    cure: str
    other: str
    limit: float = MARGIN


REPLACES = (
    Claim("a centered delta replaces matched recomputation, dS in BF16", CENTRED_HIGH, BOTH),
    Claim("... if the backward also normalizes P by itself", OWN_HIGH, BOTH),
    Claim("... and dS has few bits", OWN, BOTH),
    Claim("a centered delta replaces a high-precision dS, matched", CENTRED_MATCHED, BOTH),
    Claim("... even beside O of unrounded P", CENTRED_MATCHED, BOTH_OF_P),
    Claim("a centered delta alone replaces both", CENTRED, BOTH),
)
HELPS = (
    Claim("matched, a centered delta helps", CENTRED_MATCHED, MATCHED, 0.0),
    Claim("... more than corrections of other rows", CENTRED_MATCHED, ROWS_MATCHED, 0.0),
    Claim("... more than corrections with random signs", CENTRED_MATCHED, SIGNS_MATCHED, 0.0),
    Claim("matched, a high-precision dS helps", BOTH, MATCHED, 0.0),
    Claim("... also once rows sum to zero", BOTH_OF_P, CENTRED_MATCHED, 0.0),
    Claim("unmatched, a centered delta helps", CENTRED, NONE, 0.0),
    Claim("... more than corrections of other rows", CENTRED, ROWS, 0.0),
    Claim("... more than corrections with random signs", CENTRED, SIGNS, 0.0),
    Claim("unmatched, a high-precision dS helps", HIGH, NONE, 0.0),
)
CAPTION = (
    "A cell is a recipe with a cure: how many of its seeds diverged, of how many, and the median"
    " step; where none did, the mean of the final loss above BF16's of the same seed, in nats."
)
INTERVALS = (
    "Final loss above BF16's of the same seed, in nats: mean over seeds with its 95 % t interval;"
    " dots are seeds. Matched recomputation throughout. Gray: losses that count as equal."
)
RULES = (
    f"Is as good: one-sided sign tests over seeds first, of which run diverges earlier; where no"
    f" run diverged, the 95 % t interval of the paired difference of losses lies below {MARGIN}"
    " nats. Helps: the same tests, with an interval below 0. All runs of a seed have the same"
    " weights and batches; the loss is the mean of the last 50 steps. A loss that is not finite is"
    " in no mean; its run has diverged.",
    "Mean over recipes: of those in which no run of either cure diverged, by seed.",
    "Rows: rms of the row sums of dS over the rms of the rows' sums of |dS|. Drift: the share of"
    " W_Q's gradient that comes from them. Both of the last step, on the first sequence, with q, k,"
    " v and dO of the run's weights under BF16 attention, against binary64.",
)
CAVEATS = (
    "A GPT of two layers on Python's sources for 1,000 steps. Recipes are as we read the papers and"
    " were not compared with their code; all stay emulations: sums are native, scales of a tensor"
    " are of a head, and exponentials are in binary32. No QK norm. Many comparisons at 5 % each:"
    " one verdict in twenty may be chance."
)
HEADS = (
    "recipe",
    "cure",
    "diverged",
    "loss above BF16, nats",
    "rows of dS",
    "drift",
    "gain of dq",
    "error of dq",
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(t.QUICK if quick else t.FULL)


def study(scale: t.Scale) -> Study[Results]:
    """Return the study at a scale."""
    c = scale.config
    return Study(
        name=LOWBIT.name,
        question=LOWBIT.question,
        launches=lambda store: t.launches(scale, store),
        results=lambda store: t.results(scale, store),
        answer=answer,
        claims=claims,
        source="of",
        figures=[
            Figure(title="Which recipes train, with which cure?", draw=draw, caption=CAPTION),
            Figure(title="What does a recipe cost, matched?", draw=forest, caption=INTERVALS),
        ],
        tables=[
            Table(
                name="runs",
                title="Every recipe with every cure",
                heads=HEADS,
                rows=rows,
                records=records,
                shown=(0, 1, 2, 3, 5),
                grouped=True,
            )
        ],
        rules=RULES,
        caveats=CAVEATS,
        static=lambda progress: static.measured(progress, quick=scale.name == "quick"),
        parts=static.parts(quick=scale.name == "quick"),
        about={
            "model": in_words(c),
            "training": (
                f"rates {', '.join(f'{x:g}' for x in scale.pairs)} after {c.warmup} steps of"
                f" warm-up, {c.steps} steps; {scale.seeds} seeds"
            ),
            "recipes": "; ".join(f"{r.title}: {r.source}" for r in RECIPES.values()),
        },
        config=unnamed(c),
        scale=scale.name,
    )


def judged(claim: Claim, runs: Runs, others: Runs) -> tuple[Word, str, Estimate | None]:
    """Return the word of a claim on a recipe, what was measured, and the estimate if there is one.

    The runs are of the claim's cure and of the other, in the order of seeds.
    """
    if not is_calm(runs, others):
        word = signs(zip(others, runs, strict=True)).word  # the others diverge earlier
        if claim.limit and word is Word.AGREES:
            word = Word.UNDECIDED if diverged(runs) else Word.AGREES
        return word, f"diverged {times(runs)}; the other {times(others)}", None
    values = gaps(runs, others)
    estimate = mean(values)
    word = judge(estimate, (-math.inf, claim.limit)) if len(values) > 1 else Word.NOT_TESTABLE
    return word, f"{told(values)} nats", estimate


def claims(r: Results) -> Iterator[Verdict]:
    """Yield the verdicts on what replaces what, and on what helps at all."""
    for claim in (*REPLACES, *HELPS):
        for rate in rates(r):
            where = f", rate {rate:g}" if len(rates(r)) > 1 else ""
            for name in recipes(r):
                own, others = (r.get((name, x, rate), []) for x in (claim.cure, claim.other))
                if own and others:
                    word, measured, estimate = judged(claim, own, others)
                    case = f"{TITLES[name]}{where}"
                    yield verdict_on("delta", claim.text, case, word, measured, estimate)
            values, count = pooled(r, rate, claim.cure, claim.other)
            if len(values) > 1 and count > 1:
                estimate = mean(values)
                word = judge(estimate, (-math.inf, claim.limit))
                case = f"mean of {count} recipes{where}"
                yield verdict_on("delta", claim.text, case, word, f"{told(values)} nats", estimate)


def lost(r: Results, rate: float, cures: Sequence[str]) -> str:
    """Return how many runs in few bits with these cures diverged, with the share's interval."""
    runs = [run for (name, cure, own), each in r.items() for run in each
            if name in RECIPES and cure in cures and own == rate]  # fmt: skip
    low, high = share(diverged(runs), len(runs)) if runs else (0.0, 1.0)
    return f"{diverged(runs)} of {len(runs)} [{low:.0%}, {high:.0%}]"


def answer(r: Results) -> str:
    """Return what a centered delta replaces, at each rate."""
    parts = []
    for rate in rates(r):
        values, count = pooled(r, rate, CENTRED_MATCHED, BOTH)
        further, others = pooled(r, rate, CENTRED_MATCHED, BOTH_OF_P)
        matched = lost(r, rate, (MATCHED, CENTRED_MATCHED, BOTH, BOTH_OF_P))
        parts.append(
            f"At rate {rate:g}, without matched recomputation {lost(r, rate, (NONE, HIGH))} runs"
            f" diverged, {lost(r, rate, (CENTRED, CENTRED_HIGH))} with a centered delta, and"
            f" {lost(r, rate, (OWN, OWN_HIGH))} with one and an L of the backward; with matched"
            f" recomputation {matched}. Matched, dS in few bits with a centered delta ends"
            f" {told(values)} nats above dS in BF16 (mean of {count} recipes), and {told(further)}"
            f" above dS in BF16 with O of unrounded P ({others})"
        )
    return ". ".join(parts) + "."


def look(run: Run[t.Condition], name: str) -> float:
    """Return a number of the last look of a run."""
    looks: Mapping[str, Mapping[str, float]] = run.extra["looks"]
    return float(looks[str(run.steps)][name])


def seen(runs: Runs, name: str) -> Estimate:
    """Return the estimate of a number of the last look."""
    values = {run.seed: look(run, name) for run in runs}
    return mean(values) if name.endswith("gain") else positive(values)


def rows(r: Results) -> list[list[str]]:
    """Return a line for each recipe and cure."""
    several = len(rates(r)) > 1
    return [
        [
            f"{TITLES[name]}{f', rate {rate:g}' if several else ''}",
            CURES[cure].title,
            counted(runs),
            told(above_bf16(r, name, rate, cure)),
            *(interval(seen(runs, n)) for n in ("rows", "drift", "dq_gain", "dq_error")),
        ]
        for rate in rates(r)
        for (name, cure, own), runs in r.items()
        if own == rate
    ]


def records(r: Results) -> list[dict[str, object]]:
    """Return a record for each recipe, cure and rate."""
    return [
        {
            "recipe": name,
            "cure": cure,
            "rate": rate,
            "seeds": [run.seed for run in runs],
            "losses": [run.loss for run in runs],
            "diverged": [run.diverged for run in runs],
            "above_bf16": list(above_bf16(r, name, rate, cure).values()),
            "looks": [run.extra["looks"] for run in runs],
        }
        for (name, cure, rate), runs in r.items()
    ]
