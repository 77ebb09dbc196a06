"""What the scale rule and the format do to the operands, and to one gradient at the same state.

No training enters.
"""

import math
from collections.abc import Iterator

from roundscope.emu.blocks.format import ScaleRule
from roundscope.experiments.framework.estimates import Estimate, Values, mean, ratio
from roundscope.experiments.framework.verdicts import LARGER, Verdict, Word, interval, judge
from roundscope.experiments.papers.mxfp8_2506_08027.audit import COPIES
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    FLOOR,
    FLOOR_SR,
    RCEIL,
    RCEIL_SR,
)
from roundscope.experiments.papers.mxfp8_2506_08027.results import Results

BELOW, MOST = (-math.inf, 0.0), (0.0, 0.5)
AUDITED = "operands of GPT runs in BF16"
TENSORS = {"W": "weights", "X": "activations", "G": "gradients"}


def judged(r: Results) -> list[Verdict]:
    """Return verdicts on the audit of operands, then on the gradient's error."""
    return [*_scales(r), *_elements(r), *_copies(r), *_epsilon(r)]


def _scales(r: Results) -> Iterator[Verdict]:
    floor, up = (
        {"element": "E4M3", "rule": str(rule)} for rule in (ScaleRule.FLOOR, ScaleRule.RCEIL)
    )
    shares = {
        rule: mean(_percent(r.audited("saturated", element="E4M3", rule=str(rule))))
        for rule in ScaleRule
        if rule in _rules(r)
    }
    measured = "; ".join(f"{rule} {interval(e, ' %')}" for rule, e in shares.items())
    never = shares and shares[ScaleRule.RCEIL].mean == 0.0 == shares[ScaleRule.CEIL].mean
    always = all(share > 0.0 for share in r.audited("saturated", **floor).values())
    word = (
        Word.NOT_TESTABLE if not shares else Word.AGREES if never and always else Word.CONTRADICTS
    )
    yield _audit(
        "conversion",
        "floor saturates the largest numbers, rounding the scale up never does",
        word,
        measured,
    )
    shrink = _difference(r.audited("shrink", **floor), r.audited("shrink", **up))
    yield _audit(
        "ours",
        "floor shrinks operands more than RCEIL",
        judge(shrink, BELOW),
        f"floor - RCEIL {interval(shrink)} of sum |V|",
    )
    lost = ratio(
        r.audited("underflow", element="E4M3", rule=str(ScaleRule.CEIL)),
        r.audited("underflow", **up),
    )
    yield _audit(
        "ours",
        "ceil of the maximum loses more small numbers than RCEIL",
        judge(lost, LARGER),
        f"underflow, CEIL / RCEIL {interval(lost)}",
    )


def _elements(r: Results) -> Iterator[Verdict]:
    for tensor, name in TENSORS.items():
        sites = tuple(map(str, COPIES[tensor]))
        wide, narrow = (
            {"operand": sites, "rule": str(ScaleRule.RCEIL), "element": e} for e in ("E5M2", "E4M3")
        )
        error = ratio(r.audited("error", **wide), r.audited("error", **narrow))
        zeros = [
            interval(mean(_percent(r.audited("underflow", **own))), " %") for own in (wide, narrow)
        ]
        measured = f"error, E5M2 / E4M3 {interval(error)}; to zero {zeros[0]} and {zeros[1]}"
        yield _audit(
            "formats",
            f"32 numbers need E4M3's precision more than E5M2's range: {name}",
            judge(error, LARGER),
            measured,
        )


def _copies(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the recipe's two copies, each made from the numbers as they were."""
    for rule in (ScaleRule.FLOOR, ScaleRule.RCEIL):
        for tensor, name in TENSORS.items():
            where = {"operand": str(COPIES[tensor][0]), "element": "E4M3", "rule": str(rule)}
            e = mean(apart(r, **where))
            claim = (
                f"the row's and the column's copy differ by less than either's error: {name},"
                f" {rule}"
            )
            yield _audit(
                "recipe",
                claim,
                judge(e, (-math.inf, 1.0)),
                f"|Q_row - Q_col| / |Q - V| {interval(e)}",
            )


def apart(r: Results, **where: str) -> Values:
    """Return how far the two copies are apart in units of the rounding error, by seed.

    The operand of `where` is the row's.
    """
    distance, error = r.audited("apart", **where), r.audited("error", **where)
    return {seed: distance[seed] / error[seed] for seed in distance}


def _epsilon(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the proxy of arXiv 2506.20752 with this paper's rule.

    Gradients are compared with FP32's at the same weights and rows.
    """
    for lr in r.proxy_rates:
        zeta = ratio(r.seen(lr, FLOOR, "zeta"), r.seen(lr, RCEIL, "zeta"))
        yield _proxy(
            "floor's gradient is farther from FP32's than RCEIL's",
            lr,
            judge(zeta, LARGER),
            f"zeta, floor / RCEIL {interval(zeta)}",
        )
    for lr in r.proxy_rates:
        own = {name: mean(r.seen(lr, name, "along")) for name in (FLOOR, RCEIL, FLOOR_SR, RCEIL_SR)}
        bias = _difference(r.seen(lr, FLOOR, "along"), r.seen(lr, RCEIL, "along"))
        parts = "; ".join(f"{name} {interval(e)}" for name, e in own.items())
        measured = f"along g: {parts}; floor - RCEIL {interval(bias)}"
        yield _proxy(
            "floor shortens the gradient more than RCEIL", lr, judge(bias, BELOW), measured
        )
    for name, drawn in ((FLOOR, FLOOR_SR), (RCEIL, RCEIL_SR)):
        for lr in r.proxy_rates:
            e = ratio(_size(r.seen(lr, drawn, "along")), _size(r.seen(lr, name, "along")))
            claim = f"stochastic elements take most of the bias away: {name}"
            yield _proxy(claim, lr, judge(e, MOST), f"|along|, stochastic / nearest {interval(e)}")
    for lr in r.proxy_rates:
        e = r.over(lr, FLOOR_SR, FLOOR)
        yield _proxy(
            "with floor, stochastic elements train better",
            lr,
            judge(e, BELOW),
            f"loss above nearest's {interval(e, ' %')}",
        )


def _rules(r: Results) -> set[str]:
    return {row["rule"] for row in r.audit}


def _percent(values: Values) -> Values:
    return {seed: 100.0 * v for seed, v in values.items()}


def _size(values: Values) -> Values:
    return {seed: abs(v) for seed, v in values.items()}


def _difference(a: Values, b: Values) -> Estimate:
    return mean({seed: a[seed] - b[seed] for seed in a if seed in b})


def _audit(figure: str, claim: str, word: Word, measured: str) -> Verdict:
    return Verdict(figure=figure, claim=claim, case=AUDITED, sizes="", word=word, measured=measured)


def _proxy(claim: str, lr: float, word: Word, measured: str) -> Verdict:
    return Verdict(
        figure="ours", claim=claim, case=f"proxy, lr {lr:g}", sizes="", word=word, measured=measured
    )
