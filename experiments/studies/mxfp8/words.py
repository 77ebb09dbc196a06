"""The question and its answer, from the counts and intervals alone."""

from roundscope.experiments.studies.framework.estimates import mean
from roundscope.experiments.studies.framework.verdicts import Word, interval, judge
from roundscope.experiments.studies.mxfp8.arms import BF16, E5M2, FLOOR, FLOOR_SR, RCEIL, RCEIL_SR
from roundscope.experiments.studies.mxfp8.claims import WORSE
from roundscope.experiments.studies.mxfp8.results import Own, Results, diverged

QUESTION = "Does rounding the block scale up save MXFP8 training, and which operands need E4M3?"
SAID = {Word.AGREES: "higher than", Word.CONTRADICTS: "lower than"}


def answer(r: Results) -> str:
    """Divergences, then the losses at the rate that is usual, the first."""
    counts = "; ".join(f"{model}: {_counts(runs, FLOOR)} with floor, {_counts(runs, RCEIL)} with RCEIL" for model, runs in _models(r))
    if not r.rates:
        return f"Runs that diverged: {counts}."
    lr = r.rates[0]
    floor, cost = r.gap(lr, FLOOR, RCEIL), r.gap(lr, RCEIL, BF16)
    against = SAID.get(judge(floor, WORSE), "not clearly different from")
    worse = [name for name in E5M2.values() if judge(r.gap(lr, name, RCEIL), WORSE) is Word.AGREES]
    named = "; ".join(worse) if worse else "none clearly"
    return (
        f"Runs that diverged: {counts}. GPT at lr {lr:g}: floor's final loss is {against} RCEIL's ({interval(floor, ' nats')}), "
        f"RCEIL's is {interval(cost, ' nats')} above BF16's; worse in E5M2: {named}. {_lean(r)}"
    )


def _lean(r: Results) -> str:
    """The signed error of the proxy's gradient at one state, at the highest rate."""
    if not r.proxy_rates:
        return ""
    lr = max(r.proxy_rates)
    own = [interval(mean({s: 100.0 * v for s, v in r.seen(lr, n, "along").items()}), " %") for n in (FLOOR, RCEIL, FLOOR_SR, RCEIL_SR)]
    return (
        f"Along FP32's, the proxy's gradient at lr {lr:g} is off by {own[0]} with floor and {own[1]} with RCEIL; with stochastic elements "
        f"by {own[2]} and {own[3]}."
    )


def _models(r: Results) -> list[tuple[str, dict[str, Own]]]:
    gpt: dict[str, Own] = {name: [x for (_, n), each in r.gpt.items() if n == name for x in each] for name in (FLOOR, RCEIL)}
    proxy: dict[str, Own] = {name: [x for (_, n), each in r.proxy.items() if n == name for x in each] for name in (FLOOR, RCEIL)}
    return [("GPT", gpt), ("proxy", proxy)]


def _counts(runs: dict[str, Own], name: str) -> str:
    return f"{diverged(runs[name])} of {len(runs[name])}"
