"""`roundscope reproduce lowbit`: does a centered delta replace matched recomputation and a good dS?

Recipes of attention in few bits (`recipes`) train a small GPT with the cures of the literature,
with ours, and with shams of ours; all of a seed have the same weights at the start and the same
batches, so losses are compared in pairs. Without training, the same arithmetics are measured on
real tensors (`static`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.experiments.catalogue import LOWBIT
from roundscope.experiments.framework.counts import counted, diverged
from roundscope.experiments.framework.estimates import Estimate, mean, positive
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge, verdict_on
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.questions.lowbit import static
from roundscope.experiments.questions.lowbit import trainings as t
from roundscope.experiments.questions.lowbit.recipes import (
    BF16,
    BOTH,
    BOTH_OF_P,
    CENTRED,
    CENTRED_HIGH,
    CENTRED_MATCHED,
    CURES,
    FP32,
    NONE,
    RECIPES,
    ROWS,
    SHAMS,
    SIGNS,
)
from roundscope.experiments.questions.lowbit.trainings import Results, Runs
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas
from roundscope.tools.results.run import Run

MARGIN = 0.02  # nats within which two losses count as equal, set before the runs
TITLES = {BF16: "BF16", FP32: "FP32"} | {name: r.title for name, r in RECIPES.items()}


class Claim(NamedTuple):
    """That a cure's loss is not above another's by the margin or more.

    other is the cure of the literature, or a sham, whose loss a working cure is below by more.
    """

    text: str
    cure: str
    other: str


REPLACES = (
    Claim("a centered delta replaces matched recomputation, dS high", CENTRED_HIGH, BOTH),
    Claim("a centered delta replaces a high-precision dS, matched", CENTRED_MATCHED, BOTH),
    Claim("a centered delta alone replaces both", CENTRED, BOTH),
    Claim("a centered delta alone replaces both and O of unrounded P", CENTRED, BOTH_OF_P),
)
HELPS = (
    Claim("a centered delta alone lowers the loss", CENTRED, NONE),
    Claim("matched and high-precision dS lower the loss", BOTH, NONE),
    Claim("centered beats corrections of other rows", CENTRED, ROWS),
    Claim("centered beats corrections with random signs", CENTRED, SIGNS),
)
CAPTION = (
    "Final loss above BF16's of the same seed, in nats: mean over seeds with its 95 % t interval,"
    " dots are seeds; an arrow: a mean beyond the axis. Gray: two losses that count as equal."
)
RULES = (
    f"Two losses count as equal within {MARGIN} nats. Replaces: the 95 % t interval of the paired"
    f" difference lies below {MARGIN}. Lowers, beats: it lies below 0. All runs of a seed have the"
    " same weights and batches; the loss is the mean of the last 50 steps. A seed whose loss is not"
    " finite in either run makes a claim not testable and is counted.",
    "Rows: rms of the row sums of dS over the rms of the rows' sums of |dS|. Drift: the share of"
    " W_Q's gradient that comes from them. Both of the last step, on the first sequence, with q, k,"
    " v and dO of the run's weights under BF16 attention, against binary64.",
)
CAVEATS = (
    "A GPT of two layers on Python's sources for 1,000 steps. Recipes are as we read the papers and"
    " were not compared with their code; all stay emulations: sums are native, scales of a tensor"
    " are of a head, and exponentials are in binary32. No QK norm."
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
            Figure(title="What does a recipe cost, with each cure?", draw=draw, caption=CAPTION)
        ],
        tables=[
            Table(
                name="runs",
                title="Every recipe with every cure",
                heads=HEADS,
                rows=rows,
                records=records,
                shown=(0, 1, 2, 3, 4, 5, 6),
                grouped=True,
            )
        ],
        rules=RULES,
        caveats=CAVEATS,
        static=lambda progress: static.measured(progress, quick=scale.name == "quick"),
        parts=static.parts(quick=scale.name == "quick"),
        about={
            "model": (
                f"{c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch"
                f" {c.batch}, byte-level, {c.data}"
            ),
            "training": (
                f"rates {', '.join(f'{x:g}' for x in scale.pairs)} after {c.warmup} steps of"
                f" warm-up, {c.steps} steps; {scale.seeds} seeds"
            ),
            "recipes": "; ".join(f"{r.title}: {r.source}" for r in RECIPES.values()),
        },
        config={k: v for k, v in asdict(c).items() if k not in NAMED},
        scale=scale.name,
    )


def rates(r: Results) -> list[float]:
    """Return the rates of the results, in their order."""
    return list(dict.fromkeys(rate for _, _, rate in r))


def recipes(r: Results) -> list[str]:
    """Return the recipes of the results, without references."""
    return [name for name in RECIPES if any(name == key[0] for key in r)]


def gaps(runs: Runs, others: Runs) -> dict[int, float]:
    """Return the loss of the first runs less that of the others, by seed, NaN where one is NaN."""
    losses = {run.seed: run.loss for run in others}
    return {run.seed: run.loss - losses[run.seed] for run in runs if run.seed in losses}


def paired(r: Results, recipe: str, rate: float, cure: str, other: str) -> dict[int, float]:
    """Return the differences of two cures of a recipe, {} where one was not run."""
    runs, others = (r.get((recipe, name, rate), []) for name in (cure, other))
    return gaps(runs, others)


def above_bf16(r: Results, recipe: str, rate: float, cure: str) -> dict[int, float]:
    """Return the loss above BF16's, by seed."""
    return gaps(r.get((recipe, cure, rate), []), r.get((BF16, NONE, rate), []))


def pooled(r: Results, rate: float, cure: str, other: str) -> dict[int, float]:
    """Return by seed the mean over recipes of the differences of two cures."""
    each = [x for name in recipes(r) if (x := paired(r, name, rate, cure, other))]
    seeds = sorted(set.intersection(*(set(x) for x in each))) if each else []
    return {seed: float(np.mean([x[seed] for x in each])) for seed in seeds}


def told(values: Mapping[int, float]) -> str:
    """Return a mean with its interval and n, those that are not finite first."""
    lost = sum(not math.isfinite(x) for x in values.values())
    first = f"{lost} of {len(values)} not finite; " if lost else ""
    return f"{first}{interval(mean(values))} (n = {len(values) - lost})"


def verdicts_of(
    r: Results, claim: Claim, limit: float, which: Callable[[Estimate], Word]
) -> Iterator[Verdict]:
    """Yield the verdicts of a claim on each recipe and on their mean, at each rate."""
    for rate in rates(r):
        own = {TITLES[x]: paired(r, x, rate, claim.cure, claim.other) for x in recipes(r)}
        own["mean over recipes"] = pooled(r, rate, claim.cure, claim.other)
        for case, values in own.items():
            if not values:
                continue
            estimate = mean(values)
            is_whole = all(math.isfinite(x) for x in values.values())
            word = which(estimate) if is_whole and len(values) > 1 else Word.NOT_TESTABLE
            where = f"{case}, rate {rate:g}" if len(rates(r)) > 1 else case
            measured = f"{told(values)} nats, limit {limit:g}"
            yield verdict_on("delta", claim.text, where, word, measured, estimate)


def claims(r: Results) -> Iterator[Verdict]:
    """Yield the verdicts on what replaces what, and on what helps at all."""
    for claim in REPLACES:
        yield from verdicts_of(r, claim, MARGIN, lambda e: judge(e, (-math.inf, MARGIN)))
    for claim in HELPS:
        yield from verdicts_of(r, claim, 0.0, lambda e: judge(e, (-math.inf, 0.0)))


def answer(r: Results) -> str:
    """Return what a centered delta replaces, by the mean over recipes at the first rate."""
    rate = rates(r)[0]
    parts = []
    for claim in (*REPLACES[:3], *HELPS):
        values = pooled(r, rate, claim.cure, claim.other)
        if values:
            parts.append(f"{claim.text}: {told(values)}")
    lost = sum(diverged(runs) for (name, _, _), runs in r.items() if name in RECIPES)
    total = sum(len(runs) for (name, _, _), runs in r.items() if name in RECIPES)
    return (
        f"Differences of the final loss in nats, mean over recipes at rate {rate:g}:"
        f" {'; '.join(parts)}. {lost} of {total} runs in few bits diverged."
    )


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


SHOWN = (NONE, *SHAMS, CENTRED, CENTRED_MATCHED, CENTRED_HIGH, BOTH, BOTH_OF_P)
COLOUR_OF = dict(zip(SHOWN, (INK, "#9aa5b1", "#c7ced6", *COLOURS), strict=False))


def draw(r: Results) -> Picture | None:
    """Draw the loss above BF16 of every recipe with some cures, a panel for each rate."""
    if not any(key[:2] == (BF16, NONE) for key in r) or not recipes(r):
        return None
    names, panels = recipes(r), rates(r)
    figure, axes = canvas(1.4 + 0.55 * len(names), 1, len(panels), sharey=True)
    for ax, rate in zip(axes[0], panels, strict=True):
        ax.axvspan(-MARGIN, MARGIN, color="#e9edf1", lw=0)
        for n, cure in enumerate(SHOWN):
            for y, name in enumerate(names):
                values = above_bf16(r, name, rate, cure)
                finite = [x for x in values.values() if math.isfinite(x)]
                if not finite:
                    continue
                place, e = y + 0.8 * (n / (len(SHOWN) - 1) - 0.5), mean(values)
                colour = COLOUR_OF[cure]
                ax.plot(finite, [place] * len(finite), ".", color=colour, ms=3, alpha=0.45)
                bar = [[e.mean - e.low], [e.high - e.mean]]
                ax.errorbar(
                    e.mean,
                    place,
                    xerr=np.nan_to_num(np.array(bar)),
                    color=colour,
                    marker=MARKERS[n % len(MARKERS)],
                    ms=4.5,
                    lw=1.1,
                    capsize=1.5,
                    label=CURES[cure].title if y == 0 else None,
                )
        ax.axvline(0.0, color=INK, lw=0.8)
        ax.set(xlabel="final loss above BF16, nats", ylim=(len(names) - 0.5, -0.5))
        ax.set_yticks(range(len(names)), [TITLES[name] for name in names], fontsize=9)
        if len(panels) > 1:
            ax.set_title(f"rate {rate:g}", fontsize=10, loc="left", color=INK)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def columns(r: Results, name: str) -> Sequence[float]:
    """Return a number of the last look of all runs in few bits."""
    return [look(run, name) for (own, _, _), runs in r.items() if own in RECIPES for run in runs]
