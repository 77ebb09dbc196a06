"""How far does a training of GPT-2 small's own size get, on the arithmetic of arXiv 2510.04212?

The question, what is said of the runs, and their picture. `runs` trains them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.experiments.framework.counts import counted, signs, times
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, number, verdict_on
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.papers.gpt2_2510_04212.runs import (
    EXACT,
    FAILED_AT,
    FULL,
    ITSELF,
    NAME,
    PAPER_BATCH,
    PAPER_RATE,
    QUICK,
    ROWS,
    Results,
    grown_step,
    measured,
)
from roundscope.experiments.train.spikes import GROWTH
from roundscope.tools.report.pictures import COLOURS, canvas


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    config = QUICK if quick else FULL
    return Study(
        name=NAME,
        question="How far does GPT-2 small's own size get on the released code's arithmetic, and"
        " what diverges until there?",
        paper="arXiv 2510.04212, at its model's own size",
        measure=lambda folder, draw: measured(config, folder, draw),
        unit="steps of every run",
        kept="**/*.sqlite",
        answer=answer,
        claims=claims,
        source="whose",
        figures=[Figure(title="What diverges at GPT-2's size?", draw=draw, caption=CAPTION)],
        tables=[TABLE],
        rules=("Fails: a one-sided sign test over seeds against FP32; one seed decides nothing.",),
        caveats=CAVEATS,
        about={"model": in_words(config), "rate": f"constant after {config.warmup} steps"},
        config=unnamed(config),
        scale="quick" if quick else "full",
    )


CAPTION = (
    "Means of 25 steps of loss and of the gradient's norm; the share of the gradient of W_Q that"
    " comes from rows of dS that do not sum to zero, above 0.1 an alarm, not measured in FP32; and"
    " the largest norm of a head's W_Q. A color is an arithmetic, a dash a rate."
)
CAVEATS = (
    "One seed. Bytes of Python's sources in place of OpenWebText's tokens, so that the embedding"
    " has 0.2 million numbers and not 38.6; 8,192 tokens a step in place of 524,288; a constant"
    " rate after a short warm-up in place of 2,000 steps of warm-up and a cosine. Kernels have"
    " tiles of 64 x 64, the released code 512 x 512. Linear layers round as under autocast, in the"
    " device's own order of sums."
)


def answer(r: Results) -> str:
    """Return what was reached, what diverged, and how much farther the paper's failure is."""
    lost = "; ".join(c.name for c, run in r.runs.items() if run.diverged is not None)
    grown = "; ".join(
        f"{c.name}, from step {at}" for c, run in r.runs.items() if (at := grown_step(run))
    )
    tokens = r.steps * r.tokens
    ratio = FAILED_AT * PAPER_BATCH / tokens
    return (
        f"{len(r.runs)} arms did {r.steps} steps of {r.tokens:,} tokens each, {tokens / 1e6:.3g}"
        f" million tokens. Diverged: {lost or 'none'}. Gradients {GROWTH:g} times as large as"
        f" before: {grown or 'none'}. The paper's failure, near step {FAILED_AT:,} of"
        f" {PAPER_BATCH:,} tokens, came after {ratio:.3g} times as many tokens."
    )


def claims(r: Results) -> Iterator[Verdict]:
    """Yield verdicts for each rate, on losses and on gradients, and that on the paper's failure."""
    rates = [rate for rate in dict.fromkeys(c.rate for c in r.runs) if r.at(EXACT, rate)]
    grows = f"its gradients grow to {GROWTH:g} times before FP32's do"
    for whose, claim in (("paper", "it diverges earlier than FP32"), ("ours", grows)):
        for rate in rates:
            own, exact = r.at(ITSELF, rate), r.at(EXACT, rate)
            if whose == "ours":
                own, exact = (
                    [replace(x, diverged=grown_step(x)) for x in some] for some in (own, exact)
                )
            word = signs(zip(own, exact, strict=True)).word
            said = f"{counted(own)}; FP32 {times(exact)}"
            yield verdict_on(whose, claim, f"rate {rate:g}", word, said)
    reached = f"{r.steps} steps of {r.tokens:,} tokens"
    claim = f"it fails after some {FAILED_AT:,} steps of {PAPER_BATCH:,} tokens"
    yield verdict_on("paper", claim, f"rate {PAPER_RATE:g}", Word.NOT_TESTABLE, reached)


def draw(r: Results) -> Picture:
    """Draw loss, gradient norm, drift and largest query norm of every arm."""
    figure, axes = canvas(5.4, 2, 2)
    loss, norm, share, query = axes.flat
    rates = sorted({c.rate for c in r.runs})
    colours = dict(zip(ROWS, COLOURS, strict=False))
    for c, run in r.runs.items():
        dash = ("-", "--", ":")[rates.index(c.rate) % 3]
        look: dict[str, Any] = {"color": colours[c.row], "ls": dash, "lw": 1.2}
        curve = np.array(run.curve, float).T
        loss.plot(curve[0], curve[1], label=c.name, **look)
        norm.plot(curve[0], curve[2], **look)
        if len(run.extra["looks"]):
            at, shares, norms = np.array(run.extra["looks"], float).T
            share.plot(at, shares, **look)
            query.plot(at, norms, **look)
    share.axhline(0.1, color="#9aa5b1", lw=0.8)
    for ax in (norm, share, query):
        ax.set_yscale("log")
    for ax, label in zip(axes.flat, PANELS, strict=True):
        ax.set(xlabel="steps", ylabel=label)
    loss.legend(fontsize=7.5, frameon=False)
    return figure


PANELS = "loss, nats", "norm of the gradient", "share of drift", "largest |W_Q| of a head"


def lines(r: Results) -> Iterable[list[str]]:
    """Return a line for each arm."""
    for record in records(r):
        shown = (record["loss"], record["largest drift"], record["largest |W_Q|"])
        yield [
            str(record["row"]),
            f"{record['rate']:g}",
            f"{record['steps']}",
            f"{record['million tokens']:.3g}",
            *("-" if record[x] is None else f"{record[x]}" for x in ("diverged", "grown")),
            f"{record['spikes']}",
            *map(number, shown),
        ]


def records(r: Results) -> list[dict[str, Any]]:
    """Return a record for each arm."""
    found = []
    for c, run in r.runs.items():
        looks = np.array(run.extra["looks"], float).reshape(-1, 3)
        largest = looks.max(0, initial=-np.inf) if len(looks) else np.full(3, np.nan)
        found.append(
            {
                "row": c.row,
                "rate": c.rate,
                "steps": run.steps,
                "million tokens": run.steps * r.tokens / 1e6,
                "diverged": run.diverged,
                "grown": grown_step(run),
                "spikes": run.extra["spikes"],
                "loss": run.loss,
                "largest drift": float(largest[1]),
                "largest |W_Q|": float(largest[2]),
            }
        )
    return found


HEADS = (
    *("attention", "rate", "steps", "M tokens", "diverged", "gradient\ngrew", "spikes", "loss"),
    *("drift", "|W_Q|"),
)
TABLE = Table(
    name="arms",
    title="Every arm",
    heads=HEADS,
    rows=lines,
    records=records,
    note="Loss: the mean of the last 50 steps, in nats; drift and |W_Q|: the largest of all looks."
    " Gradient grew: the step from which the median of 20 norms was ten times the lowest before.",
    shown=tuple(range(len(HEADS))),
)
