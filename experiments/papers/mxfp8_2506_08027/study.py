"""`roundscope reproduce mxfp8`: the scale's rounding, and the operands that need E4M3."""

import math
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.papers.mxfp8_2506_08027 import claims, figures
from roundscope.experiments.papers.mxfp8_2506_08027.answer import answer
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    FP32,
    FULL,
    QUICK,
    WORDS,
    Scale,
)
from roundscope.experiments.papers.mxfp8_2506_08027.launches import planned
from roundscope.experiments.papers.mxfp8_2506_08027.results import Results, Runs, read
from roundscope.experiments.train.spikes import RULE
from roundscope.experiments.train.student.results import RULE as PROXY_RULE

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
    return [_row(r, *place) for place in r.arms()]


def _row(r: Results, model: str, lr: float, name: str, runs: Runs) -> list[str]:
    losses = [x.loss for x in runs if math.isfinite(x.loss)]
    loss = f"{np.median(losses):.4g}" if losses else "not finite"
    above = over = zeta = along = ""
    if model == "GPT" and name != BF16:
        above = interval(mean({s: 1e3 * v for s, v in r.gaps(lr, name, BF16).items()}))
    if model == "proxy" and name != FP32:
        over = interval(r.over(lr, name, FP32))
        zeta, along = (interval(mean(r.seen(lr, name, m))) for m in ("zeta", "along"))
    diverged_of = f"{diverged(runs)} of {len(runs)}"
    return [model, f"{lr:g}", name, diverged_of, loss, above, over, zeta, along]


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
