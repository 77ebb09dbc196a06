"""Fig. 7 and 8: the weights of paired trainings drift apart.

By how much do they, beside other first weights and lower precision?
"""

import math
from collections.abc import Callable

import numpy as np

from roundscope.experiments.framework.estimates import (
    Estimate,
    Values,
    exponent,
    factor,
    mean,
    ratio,
    slope,
)
from roundscope.experiments.framework.verdicts import (
    GROWS,
    LARGER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
)
from roundscope.experiments.papers.stability_2405_02803.drift.store import query
from roundscope.experiments.papers.stability_2405_02803.drift.trainings import PAIRS, Training
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import Scale

METRICS = {"wasserstein": "Wasserstein", "max_difference": "largest difference"}
BANDS = {"precision": "FP16 against FP32", "bf16": "BF16 against FP32"}
FEWER: Range = (2.0, 5.0)
AT_MOST: Range = (0.0, 1.0)


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return the verdicts on both figures, and ours."""
    t = scale.training
    ours = [
        grows(r, t, pair, metric)
        for pair in ("order", "qiu-yao")
        if pair in t.pairs
        for metric in METRICS
    ]
    return [
        *(grows(r, t, "flash", metric) for metric in METRICS),
        *(slower(r, t, metric) for metric in METRICS),
        *(higher(r, t, metric) for metric in METRICS),
        *(variable(r, t, metric) for metric in METRICS),
        *(times(r, t, band, metric) for band in BANDS for metric in METRICS),
        *ours,
    ]


def grows(r: Results, t: Training, pair: str, metric: str) -> Verdict:
    """Return the verdict on Fig. 7: does the distance grow, and still in the second half?"""
    steps, middle = t.steps[1:], t.steps[t.looks // 2]
    power = exponent(steps, [at(r, t, pair, metric, step) for step in steps])
    late = ratio(at(r, t, pair, metric, t.steps[-1]), at(r, t, pair, metric, middle))
    last = factor(at(r, t, pair, metric, t.steps[-1]))
    gap = mean(at(r, t, pair, "gap", t.steps[-1]))
    told = (
        f"steps^{interval(power)} to {interval(last)}; {interval(late, 'x')} from step {middle} to"
        f" {t.steps[-1]}"
    )
    claim = {
        "flash": "weights drift apart and keep growing",
        "order": "ours: so they do by nothing but the order of FP32 sums",
        "qiu-yao": "ours: and with the FlashAttention of arXiv 2510.04212",
    }[pair]
    return Verdict(
        figure="7",
        claim=claim,
        case=f"{METRICS[metric]}, {against(pair)}",
        sizes=where(t),
        measured=told,
        estimate=late,
        word=both(judge(power, GROWS), judge(late, LARGER)),
        note=f"the loss differs by {interval(gap)} nats at the end",
        queries=tuple(
            query(t, pair, name, step)
            for name, step in ((metric, t.steps[-1]), (metric, middle), ("gap", t.steps[-1]))
        ),
    )


def slower(r: Results, t: Training, metric: str) -> Verdict:
    """Return the verdict on Fig. 8: FlashAttention's slope beside that of other first weights."""
    found = ratio(slopes(r, t, "flash", metric), slopes(r, t, "weights", metric))
    return _fig8(
        t,
        "FlashAttention's slope is at most that of other first weights",
        metric,
        found,
        AT_MOST,
        f"{interval(found, 'x')} as steep",
        "flash",
        "weights",
    )


def higher(r: Results, t: Training, metric: str) -> Verdict:
    """Return the verdict on Fig. 8: lower precision beside other first weights."""
    found = ratio(*(at(r, t, pair, metric, t.steps[-1]) for pair in ("precision", "weights")))
    told = f"{interval(found, 'x')} as far at the end"
    return _fig8(
        t,
        "FP16 against FP32 lies above other first weights",
        metric,
        found,
        LARGER,
        told,
        "precision",
        "weights",
    )


def variable(r: Results, t: Training, metric: str) -> Verdict:
    """Return the verdict on Fig. 8: how far the distance strays from a straight line.

    It is compared with that of other first weights.
    """
    found = ratio(
        *(
            _each(r, t, pair, metric, lambda y: stray(t.steps, y))
            for pair in ("precision", "weights")
        )
    )
    own = ratio(
        *(
            _each(r, t, pair, metric, lambda y: stray(t.steps, y) / y.mean())
            for pair in ("precision", "weights")
        )
    )
    told = (
        f"{interval(found, 'x')} the scatter about its line; relative to its own size"
        f" {interval(own, 'x')}"
    )
    return _fig8(
        t,
        "FP16 against FP32 varies more than other first weights",
        metric,
        found,
        LARGER,
        told,
        "precision",
        "weights",
    )


def times(r: Results, t: Training, band: str, metric: str) -> Verdict:
    """Return the verdict on Fig. 8: the factor between low precision and FlashAttention."""
    found = ratio(*(at(r, t, pair, metric, t.steps[-1]) for pair in (band, "flash")))
    told = f"{BANDS[band]} is {interval(found, 'x')} FlashAttention's at the end"
    return _fig8(
        t,
        "FlashAttention drifts 2 to 5 times less than low precision",
        metric,
        found,
        FEWER,
        told,
        band,
        "flash",
    )


def at(r: Results, t: Training, pair: str, metric: str, step: int) -> Values:
    """Return a column of `Apart` at a look, by seed; empty where nothing was trained."""
    place = t.steps.index(step)
    return {seed: float(getattr(a, metric)[place]) for seed, a in r.drifts.get(pair, {}).items()}


def both(first: Word, second: Word) -> Word:
    """Return the word for a claim of two parts, which fails with either."""
    words = (first, second)
    return next((word for word in (Word.CONTRADICTS, Word.UNDECIDED) if word in words), Word.AGREES)


def slopes(r: Results, t: Training, pair: str, metric: str) -> Values:
    """Return the slopes of the straight line through all looks, per step."""
    return _each(r, t, pair, metric, lambda y: slope(t.steps, y))


def stray(steps: list[int], y: np.ndarray) -> float:
    """Return the root mean square of y about its least-squares line, over n - 2 points."""
    x = np.array(steps) - np.mean(steps)
    left = y - y.mean() - slope(steps, y) * x
    return math.sqrt(float(left @ left) / (len(x) - 2))


def where(t: Training) -> str:
    """Return the training in words."""
    c = t.config
    return (
        f"GPT of {c.layers} layers, width {c.width}, {c.steps} steps, lr {c.lr:g}, {t.seeds} seeds"
    )


def against(pair: str) -> str:
    """Return the two trainings of a pair in words."""
    return " against ".join(PAIRS[pair])


def _each(
    r: Results, t: Training, pair: str, metric: str, of: Callable[[np.ndarray], float]
) -> Values:
    return {seed: float(of(getattr(a, metric))) for seed, a in r.drifts.get(pair, {}).items()}


def _fig8(
    t: Training, claim: str, metric: str, found: Estimate, holds: Range, told: str, *pairs: str
) -> Verdict:
    return Verdict(
        figure="8",
        claim=claim,
        case=METRICS[metric],
        sizes=where(t),
        word=judge(found, holds),
        measured=told,
        estimate=found,
        queries=tuple(query(t, pair, metric, t.steps[-1]) for pair in pairs),
    )
