"""The paper's claims and ours, each with what was measured and a verdict; and the rules.

First what is trained; then what the scale rule and the format do to the operands, and to one
gradient at the same state, where no training enters.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

from roundscope.emu.blocks.format import ScaleRule
from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import Estimate, Values, mean, ratio
from roundscope.experiments.framework.verdicts import LARGER, Range, Verdict, Word, interval, judge
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    E5M2,
    ENDS,
    FIRST,
    FLOOR,
    FLOOR_SR,
    FP32,
    LAST,
    RCEIL,
    RCEIL_SR,
)
from roundscope.experiments.papers.mxfp8_2506_08027.measurements import COPIES, Results, Runs

RULES = (
    "Arms of one seed have the same weights and batches; differences are paired by seed and shown"
    " with 95 % t intervals. 'Agrees' if the whole interval is where the claim holds, 'contradicts'"
    " if none of it is, 'undecided' otherwise. Losses: mean of the last 50 steps, of runs that did"
    " not diverge. 'Floor diverges': not testable where no floor run diverged, or where FP32 or"
    " BF16 did too; agrees if no RCEIL run did. Intervals are not widened for the number of claims."
)
WORSE, BELOW, MOST = (0.0, math.inf), (-math.inf, 0.0), (0.0, 0.5)
CLOSE = (-math.inf, 0.5)  # per cent of perplexity: the largest difference that counts as none
AUDITED = "operands of GPT runs in BF16"
TENSORS = {"W": "weights", "X": "activations", "G": "gradients"}
FLOORED, RAISED = str(ScaleRule.FLOOR), str(ScaleRule.RCEIL)


def judged(r: Results) -> list[Verdict]:
    """Return verdicts on every claim."""
    return [*_training(r), *_operands(r), *_gradients(r)]


def _row(figure: str, claim: str, case: str, word: Word, measured: str) -> Verdict:
    return Verdict(figure=figure, claim=claim, case=case, sizes="", word=word, measured=measured)


def _audit(figure: str, claim: str, e: Estimate, holds: Range, measured: str) -> Verdict:
    return _row(figure, claim, AUDITED, judge(e, holds), measured)


def _at_rates(
    r: Results,
    model: str,
    figure: str,
    claim: str,
    read: Callable[[float], Estimate],
    holds: Range,
    told: str,
    unit: str = "",
) -> Iterator[Verdict]:
    """Yield a verdict for each rate of a model, from the estimate that is read there."""
    for lr in r.rates if model == "GPT" else r.proxy_rates:
        e = read(lr)
        word, measured = judge(e, holds), f"{told} {interval(e, unit)}"
        yield _row(figure, claim, f"{model}, lr {lr:g}", word, measured)


def _training(r: Results) -> Iterator[Verdict]:
    def gpt(figure: str, claim: str, own: str, base: str, told: str) -> Iterator[Verdict]:
        loss = partial(r.gap, name=own, base=base)
        return _at_rates(r, "GPT", figure, claim, loss, WORSE, told, " nats")

    def close(figure: str, claim: str, own: str, base: str, told: str) -> Iterator[Verdict]:
        perplexity = partial(r.perplexity, name=own, base=base)
        return _at_rates(r, "GPT", figure, claim, perplexity, CLOSE, f"perplexity {told}", " %")

    # the abstract's version 1: rounding of the scale decides about stability
    stable = "with the floor of OCP MX 1.0 training can diverge, with RCEIL not"
    lower = "RCEIL trains to a lower loss than floor"
    for model, rates, runs in (("GPT", r.rates, r.gpt), ("proxy", r.proxy_rates, r.proxy)):
        for lr in rates:
            arms = {name: runs.get((lr, name), ()) for name in (FLOOR, RCEIL, BF16, FP32)}
            measured = "; ".join(f"{n} {diverged(x)} of {len(x)}" for n, x in arms.items())
            yield _row("abstract, v1", stable, f"{model}, lr {lr:g}", _can(arms), measured)
    yield from gpt("abstract, v1", lower, FLOOR, RCEIL, "floor's loss above RCEIL's")
    over, told = partial(r.over, name=FLOOR, base=RCEIL), "floor's loss above RCEIL's"
    yield from _at_rates(r, "proxy", "abstract, v1", lower, over, WORSE, told, " %")

    recipe = "E4M3 for all operands with RCEIL is within 0.5 % of BF16's perplexity"
    yield from close("results, 8 B", recipe, RCEIL, BF16, "above BF16's")
    for name in (RCEIL, FLOOR, E5M2["operands"]):
        claim = f"every MX variant is slightly worse than BF16: {name}"
        yield from gpt("results, 843 M", claim, name, BF16, "loss above BF16's")
    for what, name in E5M2.items():
        claim = f"E5M2 for {'all operands' if what == 'operands' else what} is worse than E4M3"
        yield from gpt("results, formats", claim, name, RCEIL, "loss above E4M3's")
    # layers of the keep list; the embedding, the last norm and the output matrix are never
    # quantized here
    for name in (FIRST, LAST, ENDS):
        claim = f"all layers may be MX: less than 0.5 % is gained by {name}"
        yield from close("recipe", claim, RCEIL, name, "gained")


def _can(own: dict[str, Runs]) -> Word:
    if not diverged(own[FLOOR]) or diverged(own[FP32]) or diverged(own[BF16]):
        return Word.NOT_TESTABLE
    if not diverged(own[RCEIL]):
        return Word.AGREES
    return Word.CONTRADICTS if diverged(own[RCEIL]) >= diverged(own[FLOOR]) else Word.UNDECIDED


def _operands(r: Results) -> Iterator[Verdict]:
    def e4m3(number: str, rule: ScaleRule) -> Values:
        return r.audited(number, element="E4M3", rule=str(rule))

    rules = {row["rule"] for row in r.audit}
    saturated = {rule: e4m3("saturated", rule) for rule in ScaleRule if rule in rules}
    shares = {rule: mean(_percent(own)) for rule, own in saturated.items()}
    measured = "; ".join(f"{rule} {interval(e, ' %')}" for rule, e in shares.items())
    word = Word.NOT_TESTABLE
    if shares:
        never = shares[ScaleRule.RCEIL].mean == 0.0 == shares[ScaleRule.CEIL].mean
        always = all(share > 0.0 for share in saturated.get(ScaleRule.FLOOR, {}).values())
        word = Word.AGREES if never and always else Word.CONTRADICTS
    claim = "floor saturates the largest numbers, rounding the scale up never does"
    yield _row("conversion", claim, AUDITED, word, measured)
    shrink = _difference(e4m3("shrink", ScaleRule.FLOOR), e4m3("shrink", ScaleRule.RCEIL))
    measured = f"floor - RCEIL {interval(shrink)} of sum |V|"
    yield _audit("ours", "floor shrinks operands more than RCEIL", shrink, BELOW, measured)
    lost = ratio(e4m3("underflow", ScaleRule.CEIL), e4m3("underflow", ScaleRule.RCEIL))
    claim = "ceil of the maximum loses more small numbers than RCEIL"
    yield _audit("ours", claim, lost, LARGER, f"underflow, CEIL / RCEIL {interval(lost)}")

    for tensor, name in TENSORS.items():
        where = {"operand": tuple(map(str, COPIES[tensor])), "rule": RAISED}
        wide, narrow = (
            {number: r.audited(number, **where, element=e) for number in ("error", "underflow")}
            for e in ("E5M2", "E4M3")
        )
        e = ratio(wide["error"], narrow["error"])
        zeros = [interval(mean(_percent(own["underflow"])), " %") for own in (wide, narrow)]
        measured = f"error, E5M2 / E4M3 {interval(e)}; to zero {zeros[0]} and {zeros[1]}"
        claim = f"32 numbers need E4M3's precision more than E5M2's range: {name}"
        yield _audit("formats", claim, e, LARGER, measured)

    # the recipe's two copies, each made from the numbers as they were
    for rule in (FLOORED, RAISED):
        for tensor, name in TENSORS.items():
            e = mean(apart(r, operand=str(COPIES[tensor][0]), element="E4M3", rule=rule))
            claim = f"the row's and the column's copy differ by less than either's error: {name}"
            measured = f"|Q_row - Q_col| / |Q - V| {interval(e)}"
            yield _audit("recipe", f"{claim}, {rule}", e, (-math.inf, 1.0), measured)


def apart(r: Results, **where: str) -> Values:
    """Return how far the two copies are apart in units of the rounding error, by seed.

    The operand of `where` is the row's.
    """
    distance, error = r.audited("apart", **where), r.audited("error", **where)
    return {seed: distance[seed] / error[seed] for seed in distance}


def _gradients(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the proxy of arXiv 2506.20752 with this paper's rule.

    Gradients are compared with FP32's at the same weights and rows.
    """

    def size(lr: float, name: str) -> Values:
        return {seed: abs(v) for seed, v in r.seen(lr, name, "along").items()}

    def zeta(lr: float) -> Estimate:
        return ratio(r.seen(lr, FLOOR, "zeta"), r.seen(lr, RCEIL, "zeta"))

    def left(lr: float, name: str, drawn: str) -> Estimate:
        return ratio(size(lr, drawn), size(lr, name))

    claim = "floor's gradient is farther from FP32's than RCEIL's"
    yield from _at_rates(r, "proxy", "ours", claim, zeta, LARGER, "zeta, floor / RCEIL")
    for lr in r.proxy_rates:
        along = {n: r.seen(lr, n, "along") for n in (FLOOR, RCEIL, FLOOR_SR, RCEIL_SR)}
        bias = _difference(along[FLOOR], along[RCEIL])
        parts = "; ".join(f"{name} {interval(mean(own))}" for name, own in along.items())
        measured = f"along g: {parts}; floor - RCEIL {interval(bias)}"
        claim = "floor shortens the gradient more than RCEIL"
        yield _row("ours", claim, f"proxy, lr {lr:g}", judge(bias, BELOW), measured)
    for name, drawn in ((FLOOR, FLOOR_SR), (RCEIL, RCEIL_SR)):
        claim = f"stochastic elements take most of the bias away: {name}"
        share, told = partial(left, name=name, drawn=drawn), "|along|, stochastic / nearest"
        yield from _at_rates(r, "proxy", "ours", claim, share, MOST, told)
    over, told = partial(r.over, name=FLOOR_SR, base=FLOOR), "loss above nearest's"
    claim = "with floor, stochastic elements train better"
    yield from _at_rates(r, "proxy", "ours", claim, over, BELOW, told, " %")


def _percent(values: Values) -> Values:
    return {seed: 100.0 * v for seed, v in values.items()}


def _difference(a: Values, b: Values) -> Estimate:
    return mean({seed: a[seed] - b[seed] for seed in a if seed in b})
