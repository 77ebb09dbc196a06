"""`roundscope reproduce mxfp8`: the scale's rounding, and the operands that need E4M3."""

import math
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import Word, interval, judge
from roundscope.experiments.papers.mxfp8_2506_08027 import claims, figures
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    E5M2,
    FLOOR,
    FLOOR_SR,
    FP32,
    FULL,
    QUICK,
    RCEIL,
    RCEIL_SR,
    WORDS,
    Scale,
)
from roundscope.experiments.papers.mxfp8_2506_08027.measurements import Results, planned, read
from roundscope.experiments.train.spikes import RULE
from roundscope.experiments.train.student.run import RULE as PROXY_RULE

QUESTION = "Does rounding the block scale up save MXFP8 training, and which operands need E4M3?"
LEFT_OUT = (
    "Not shown: the paper's 8 B and 16 B models and its trillions of tokens, native MXFP8 "
    "products, MMLU. The paper's text was not at hand: its claims are those of its abstracts and "
    "of notes that quote it. Tests check the scale rules against public oracles."
)
AUDIT = (
    "Operands of the BF16 runs' steps: X and X_W the activations as operands of x W and of x^T g, "
    "W and W_X the weights, G_X and G_W the gradients, blocked along the axis that the product "
    "sums over. Below 0, numbers shrink."
)
COPIES = (
    "A scale is a power of two, so both copies round alike except where one is clipped or below the"
    " element's normal range."
)
ARMS = f"Arms. {'. '.join(f'{name}: {text}' for name, text in WORDS.items())}."
FIGURES = (
    Figure(
        title="What do they cost the proxy?",
        draw=figures.proxy,
        caption=f"A student that learns a teacher, arXiv 2506.20752. {PROXY_RULE}",
    ),
    Figure(
        title="How wrong is the proxy's gradient at one state?",
        draw=figures.epsilon,
        caption=(
            "Against FP32's at the same weights and rows; medians over each run before it diverged."
        ),
    ),
    Figure(
        title="What do rules and formats do to the operands?", draw=figures.audit, caption=AUDIT
    ),
    Figure(
        title="How far are the two copies of a tensor apart?", draw=figures.copies, caption=COPIES
    ),
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale = FULL) -> Study[Results]:
    """Return the claims of arXiv 2506.08027 on a small GPT and on the student, as a study."""
    opening = Figure(
        title="What do scale, format and layers cost the GPT?",
        draw=partial(figures.opening, scale=scale),
        caption=f"A dot for each seed, the mean and its 95 % interval. {RULE}",
    )
    gpt = {f"gpt.{name}": value for name, value in asdict(scale.gpt).items()}
    proxy = {f"proxy.{name}": value for name, value in asdict(scale.proxy).items()}
    return Study(
        name="mxfp8",
        question=QUESTION,
        paper="arXiv 2506.08027, on small models.",
        launches=partial(planned, scale),
        results=partial(read, scale),
        answer=answer,
        claims=claims.judged,
        source="source",
        figures=(opening, *FIGURES),
        tables=(TABLE,),
        rules=(claims.RULES, ARMS),
        caveats=LEFT_OUT,
        about=about(scale),
        config=gpt | proxy,
        scale=scale.name,
    )


def answer(r: Results) -> str:
    """Return the divergences, then the losses at the first rate, which is the usual one."""

    def count(model: str, name: str) -> str:
        runs = [x for m, _, n, own in r.arms() if (m, n) == (model, name) for x in own]
        return f"{diverged(runs)} of {len(runs)}"

    counts = "; ".join(
        f"{model}: {count(model, FLOOR)} with floor, {count(model, RCEIL)} with RCEIL"
        for model in ("GPT", "proxy")
    )
    if not r.rates:
        return f"Runs that diverged: {counts}."
    lr = r.rates[0]
    floor, cost = r.gap(lr, FLOOR, RCEIL), r.gap(lr, RCEIL, BF16)
    said = {Word.AGREES: "higher than", Word.CONTRADICTS: "lower than"}
    against = said.get(judge(floor, claims.WORSE), "not clearly different from")
    in_e5m2 = {name: judge(r.gap(lr, name, RCEIL), claims.WORSE) for name in E5M2.values()}
    worse = [name for name, word in in_e5m2.items() if word is Word.AGREES]
    return (
        f"Runs that diverged: {counts}. GPT at lr {lr:g}: floor's final loss is {against} RCEIL's "
        f"({interval(floor, ' nats')}), RCEIL's is {interval(cost, ' nats')} above BF16's; "
        f"worse in E5M2: {'; '.join(worse) or 'none clearly'}. {_along(r)}"
    )


def _along(r: Results) -> str:
    """Return the signed error of the proxy's gradient at one state, at the highest rate."""
    if not r.proxy_rates:
        return ""
    lr = max(r.proxy_rates)
    seen = [r.seen(lr, name, "along") for name in (FLOOR, RCEIL, FLOOR_SR, RCEIL_SR)]
    shown = [interval(mean({s: 100.0 * v for s, v in own.items()}), " %") for own in seen]
    return (
        f"Along FP32's, the proxy's gradient at lr {lr:g} is off by {shown[0]} with floor and "
        f"{shown[1]} with RCEIL; with stochastic elements by {shown[2]} and {shown[3]}."
    )


def about(scale: Scale) -> dict[str, str]:
    """Return what was run, in words."""
    g, p = scale.gpt, scale.proxy
    model = f"{g.layers} layers, width {g.width}, {g.heads} heads, context {g.context}"
    steps = f"batch {g.batch}, {g.steps} steps, bytes of {g.data}"
    rate = f"cosine to a tenth after {g.warmup} steps of warm-up"
    proxy = f"{p.depth} layers, width {p.width}, batch {p.batch}, {p.steps} steps, {p.phi}"
    audited = " ".join(map(str, scale.audited))
    return {
        "GPT": f"{model}, {steps}, {rate}, {len(scale.seeds)} seeds",
        "proxy": f"{proxy}, {len(scale.proxy_seeds)} seeds",
        "audit": f"steps {audited} of the BF16 runs, all layers and matrices",
    }


def records(r: Results) -> list[dict[str, Any]]:
    """Return a record for each model, rate and arm."""
    return [
        {
            "model": model,
            "lr": lr,
            "arm": name,
            "seeds": [x.seed for x in runs],
            "diverged": [x.diverged for x in runs],
            "losses": [x.loss for x in runs],
        }
        for model, lr, name, runs in r.arms()
    ]


def rows(r: Results) -> list[list[str]]:
    """Return the same in words: the columns of TABLE."""
    lines = []
    for model, lr, name, runs in r.arms():
        losses = [x.loss for x in runs if math.isfinite(x.loss)]
        loss = f"{np.median(losses):.4g}" if losses else "not finite"
        above = over = zeta = along = ""
        if model == "GPT" and name != BF16:
            above = interval(mean({s: 1e3 * v for s, v in r.gaps(lr, name, BF16).items()}))
        if model == "proxy" and name != FP32:
            over = interval(r.over(lr, name, FP32))
            zeta, along = (interval(mean(r.seen(lr, name, m))) for m in ("zeta", "along"))
        count = f"{diverged(runs)} of {len(runs)}"
        lines.append([model, f"{lr:g}", name, count, loss, above, over, zeta, along])
    return lines


TABLE = Table(
    name="arms",
    title="Every arm",
    heads=(
        *("model", "lr", "arm", "diverged", "final loss"),
        *("above BF16, mnats", "above FP32, %", "zeta", "along g"),
    ),
    rows=rows,
    records=records,
)
