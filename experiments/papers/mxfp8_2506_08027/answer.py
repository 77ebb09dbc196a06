"""The answer of `roundscope reproduce mxfp8`, from the counts and intervals alone."""

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.verdicts import Word, interval, judge
from roundscope.experiments.papers.mxfp8_2506_08027.claims import WORSE
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    E5M2,
    FLOOR,
    FLOOR_SR,
    RCEIL,
    RCEIL_SR,
)
from roundscope.experiments.papers.mxfp8_2506_08027.results import Results

SAID = {Word.AGREES: "higher than", Word.CONTRADICTS: "lower than"}


def answer(r: Results) -> str:
    """Return the divergences, then the losses at the first rate, which is the usual one."""
    counts = "; ".join(f"{model}: {_counts(r, model)}" for model in ("GPT", "proxy"))
    if not r.rates:
        return f"Runs that diverged: {counts}."
    lr = r.rates[0]
    floor, cost = r.gap(lr, FLOOR, RCEIL), r.gap(lr, RCEIL, BF16)
    against = SAID.get(judge(floor, WORSE), "not clearly different from")
    worse = [name for name in E5M2.values() if judge(r.gap(lr, name, RCEIL), WORSE) is Word.AGREES]
    return (
        f"Runs that diverged: {counts}. GPT at lr {lr:g}: floor's final loss is {against} RCEIL's "
        f"({interval(floor, ' nats')}), RCEIL's is {interval(cost, ' nats')} above BF16's; "
        f"worse in E5M2: {'; '.join(worse) or 'none clearly'}. {_along(r)}"
    )


def _counts(r: Results, model: str) -> str:
    return f"{_count(r, model, FLOOR)} with floor, {_count(r, model, RCEIL)} with RCEIL"


def _count(r: Results, model: str, name: str) -> str:
    runs = [x for m, _, n, own in r.arms() if (m, n) == (model, name) for x in own]
    return f"{diverged(runs)} of {len(runs)}"


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
