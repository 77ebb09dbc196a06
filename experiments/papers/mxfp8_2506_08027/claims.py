"""The paper's claims about training, each with what was measured and a verdict.

Here are also the rules that judge them.
"""

import math
from collections.abc import Iterator

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge
from roundscope.experiments.papers.mxfp8_2506_08027 import claims_rounding
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    E5M2,
    ENDS,
    FIRST,
    FLOOR,
    FP32,
    LAST,
    RCEIL,
)
from roundscope.experiments.papers.mxfp8_2506_08027.results import Results, Runs

RULES = (
    "Arms of one seed have the same weights and batches; differences are paired by seed and shown"
    " with 95 % t intervals. 'Agrees' if the whole interval is where the claim holds, 'contradicts'"
    " if none of it is, 'undecided' otherwise. Losses: mean of the last 50 steps, of runs that did"
    " not diverge. 'Floor diverges': not testable where no floor run diverged, or where FP32 or"
    " BF16 did too; agrees if no RCEIL run did. Intervals are not widened for the number of claims."
)
WORSE, ANY = (0.0, math.inf), -math.inf
HALF = 0.5  # per cent of perplexity: the largest difference that counts as none


def judged(r: Results) -> list[Verdict]:
    """Return verdicts on every claim."""
    own = [*_floor(r), *_recipe(r), *_variants(r), *_formats(r), *_kept(r)]
    return [*own, *claims_rounding.judged(r)]


def _floor(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the abstract's version 1: rounding of the scale decides about stability."""
    stable = "with the floor of OCP MX 1.0 training can diverge, with RCEIL not"
    lower = "RCEIL trains to a lower loss than floor"
    for model, rates, runs in (("GPT", r.rates, r.gpt), ("proxy", r.proxy_rates, r.proxy)):
        for lr in rates:
            own: dict[str, Runs] = {
                name: runs.get((lr, name), []) for name in (FLOOR, RCEIL, BF16, FP32)
            }
            yield _verdict(
                "abstract, v1",
                stable,
                model,
                lr,
                _can(own),
                "; ".join(f"{name} {_times(x)}" for name, x in own.items()),
            )
    for lr in r.rates:
        e = r.gap(lr, FLOOR, RCEIL)
        yield _verdict(
            "abstract, v1",
            lower,
            "GPT",
            lr,
            judge(e, WORSE),
            f"floor's loss above RCEIL's {interval(e, ' nats')}",
        )
    for lr in r.proxy_rates:
        e = r.over(lr, FLOOR, RCEIL)
        yield _verdict(
            "abstract, v1",
            lower,
            "proxy",
            lr,
            judge(e, WORSE),
            f"floor's loss above RCEIL's {interval(e, ' %')}",
        )


def _can(own: dict[str, Runs]) -> Word:
    if not diverged(own[FLOOR]) or diverged(own[FP32]) or diverged(own[BF16]):
        return Word.NOT_TESTABLE
    if not diverged(own[RCEIL]):
        return Word.AGREES
    return Word.CONTRADICTS if diverged(own[RCEIL]) >= diverged(own[FLOOR]) else Word.UNDECIDED


def _times(own: Runs) -> str:
    return f"{diverged(own)} of {len(own)}"


def _recipe(r: Results) -> Iterator[Verdict]:
    claim = "E4M3 for all operands with RCEIL is within 0.5 % of BF16's perplexity"
    for lr in r.rates:
        e = _perplexity(r, lr, RCEIL, BF16)
        yield _verdict(
            "results, 8 B",
            claim,
            "GPT",
            lr,
            judge(e, (ANY, HALF)),
            f"perplexity above BF16's {interval(e, ' %')}",
        )


def _perplexity(r: Results, lr: float, name: str, base: str) -> Estimate:
    """Return by how many per cent an arm's perplexity is higher."""
    return mean({seed: 100.0 * math.expm1(gap) for seed, gap in r.gaps(lr, name, base).items()})


def _variants(r: Results) -> Iterator[Verdict]:
    for name in (RCEIL, FLOOR, E5M2["operands"]):
        for lr in r.rates:
            e = r.gap(lr, name, BF16)
            claim = f"every MX variant is slightly worse than BF16: {name}"
            yield _verdict(
                "results, 843 M",
                claim,
                "GPT",
                lr,
                judge(e, WORSE),
                f"loss above BF16's {interval(e, ' nats')}",
            )


def _formats(r: Results) -> Iterator[Verdict]:
    for what, name in E5M2.items():
        for lr in r.rates:
            e = r.gap(lr, name, RCEIL)
            claim = f"E5M2 for {'all operands' if what == 'operands' else what} is worse than E4M3"
            yield _verdict(
                "results, formats",
                claim,
                "GPT",
                lr,
                judge(e, WORSE),
                f"loss above E4M3's {interval(e, ' nats')}",
            )


def _kept(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on layers of the keep list.

    The embedding, the last norm and the output matrix are never quantized here.
    """
    for name in (FIRST, LAST, ENDS):
        for lr in r.rates:
            e = _perplexity(r, lr, RCEIL, name)
            claim = f"all layers may be MX: less than 0.5 % is gained by {name}"
            yield _verdict(
                "recipe",
                claim,
                "GPT",
                lr,
                judge(e, (ANY, HALF)),
                f"perplexity gained {interval(e, ' %')}",
            )


def _verdict(figure: str, claim: str, model: str, lr: float, word: Word, measured: str) -> Verdict:
    return Verdict(
        figure=figure,
        claim=claim,
        case=f"{model}, lr {lr:g}",
        sizes="",
        word=word,
        measured=measured,
    )
