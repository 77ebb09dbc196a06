"""Fig. 7 and 8: the weights of paired trainings drift apart.

By how much do they, beside other first weights and lower precision?
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from roundscope.experiments.framework.estimates import Values, exponent, factor, mean, ratio, slope
from roundscope.experiments.framework.figures.series import COLOURS, QUIET, canvas, legend
from roundscope.experiments.framework.verdicts import (
    GROWS,
    LARGER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
    verdict_on,
)
from roundscope.experiments.papers.stability_2405_02803.measuring import Results, Scale, drift_query
from roundscope.experiments.papers.stability_2405_02803.trainings import PAIRS, Training

METRICS = {"wasserstein": "Wasserstein", "max_difference": "largest difference"}
FEWER: Range = (2.0, 5.0)
AT_MOST: Range = (0.0, 1.0)
GROWING = {  # pair -> the claim of Fig. 7 on it
    "flash": "weights drift apart and keep growing",
    "order": "ours: so they do by nothing but the order of FP32 sums",
    "qiu-yao": "ours: and with the FlashAttention of arXiv 2510.04212",
}
Compared = Callable[[Sequence[int], np.ndarray], float]  # of the steps and a column of `Apart`


def end(steps: Sequence[int], y: np.ndarray) -> float:
    """Return the distance at the end."""
    return float(y[-1])


def stray(steps: Sequence[int], y: np.ndarray) -> float:
    """Return the root mean square of y about its least-squares line, over n - 2 points."""
    x = np.array(steps) - np.mean(steps)
    left = y - y.mean() - slope(steps, y) * x
    return math.sqrt(float(left @ left) / (len(x) - 2))


def relative_stray(steps: Sequence[int], y: np.ndarray) -> float:
    """Return the same over the mean of y."""
    return float(stray(steps, y) / y.mean())


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of Fig. 8 on the ratio of two pairs.

    The first of `compared` is judged; all are in `measured`, each in the place of a {}.
    """

    text: str
    pairs: tuple[str, str]
    compared: tuple[Compared, ...]
    holds: Range
    measured: str


WEIGHTS, LESS = "other first weights", "FlashAttention drifts 2 to 5 times less than low precision"
SLOPE = f"FlashAttention's slope is at most that of {WEIGHTS}"
FP16, BF16 = "FP16 against FP32", "BF16 against FP32"
SCATTER = "{} the scatter about its line; relative to its own size {}"
END = "{} FlashAttention's at the end"
LOW = ("precision", "weights")
FIGURE_8 = (
    Claim(SLOPE, ("flash", "weights"), (slope,), AT_MOST, "{} as steep"),
    Claim(f"{FP16} lies above {WEIGHTS}", LOW, (end,), LARGER, "{} as far at the end"),
    Claim(f"{FP16} varies more than {WEIGHTS}", LOW, (stray, relative_stray), LARGER, SCATTER),
    Claim(LESS, ("precision", "flash"), (end,), FEWER, f"{FP16} is {END}"),
    Claim(LESS, ("bf16", "flash"), (end,), FEWER, f"{BF16} is {END}"),
)


def judged(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield the verdicts on both figures, and ours."""
    t = scale.training
    for metric in METRICS:
        yield grows(r, t, "flash", metric)
    for claim in FIGURE_8:
        for metric in METRICS:
            columns = [r.drifts.get(pair, {}) for pair in claim.pairs]
            found = [
                ratio(
                    *({s: of(t.steps, getattr(a, metric)) for s, a in c.items()} for c in columns)
                )
                for of in claim.compared
            ]
            yield verdict_on(
                "8",
                claim.text,
                METRICS[metric],
                claim.holds,
                claim.measured.format(*(interval(e, "x") for e in found)),
                found[0],
                sizes=_sizes(t),
                queries=tuple(drift_query(t, pair, metric, t.steps[-1]) for pair in claim.pairs),
            )
    for pair in ("order", "qiu-yao"):
        if pair in t.pairs:
            for metric in METRICS:
                yield grows(r, t, pair, metric)


def grows(r: Results, t: Training, pair: str, metric: str) -> Verdict:
    """Return the verdict on Fig. 7: does the distance grow, and still in the second half?"""
    middle, end = t.steps[t.looks // 2], t.steps[-1]
    power = exponent(t.steps[1:], [_at(r, t, pair, metric, step) for step in t.steps[1:]])
    late = ratio(_at(r, t, pair, metric, end), _at(r, t, pair, metric, middle))
    words = judge(power, GROWS), judge(late, LARGER)  # the claim fails with either
    last, gap = factor(_at(r, t, pair, metric, end)), mean(_at(r, t, pair, "gap", end))
    return verdict_on(
        "7",
        GROWING[pair],
        f"{METRICS[metric]}, {' against '.join(PAIRS[pair])}",
        next((w for w in (Word.CONTRADICTS, Word.UNDECIDED) if w in words), Word.AGREES),
        f"steps^{interval(power)} to {interval(last)}; {interval(late, 'x')} from step"
        f" {middle} to {end}",
        late,
        f"the loss differs by {interval(gap)} nats at the end",
        sizes=_sizes(t),
        queries=tuple(
            drift_query(t, pair, name, step)
            for name, step in ((metric, end), (metric, middle), ("gap", end))
        ),
    )


def _sizes(t: Training) -> str:
    c = t.config
    return (
        f"GPT of {c.layers} layers, width {c.width}, {c.steps} steps, lr {c.lr:g}, {t.seeds} seeds"
    )


def _at(r: Results, t: Training, pair: str, metric: str, step: int) -> Values:
    """Return a column of `Apart` at a look, by seed; empty where nothing was trained."""
    place = t.steps.index(step)
    return {seed: float(getattr(a, metric)[place]) for seed, a in r.drifts.get(pair, {}).items()}


LINES = {  # pair -> (color, line, label)
    "weights": (QUIET, "-", "band: other first weights"),
    "precision": (COLOURS[3], "-", "band: FP16 against FP32"),
    "bf16": (COLOURS[4], "-", "BF16 against FP32"),
    "flash": (COLOURS[0], "-", "fa2-bf16 against unfused BF16"),
    "qiu-yao": (COLOURS[1], "--", "qiu-yao against unfused BF16"),
    "order": (COLOURS[2], ":", "FP32 in tiles against FP32"),
}


def draw(r: Results, scale: Scale) -> Figure:
    """Draw both metrics over steps: a thin line per seed, geometric means, intervals as bands."""
    figure, (axes,) = canvas(4.4, 1, 2)
    steps = np.array(scale.training.steps)
    pairs = {pair: look for pair, look in LINES.items() if pair in r.drifts}
    for ax, (metric, name) in zip(axes, METRICS.items(), strict=True):
        for pair, (colour, line, label) in pairs.items():
            seeds = [getattr(a, metric) for a in r.drifts[pair].values()]
            for own in seeds:
                shown = own > 0
                ax.plot(steps[shown], own[shown], line, color=colour, lw=0.6, alpha=0.35)
            found = [factor(dict(enumerate(map(float, look)))) for look in zip(*seeds, strict=True)]
            low, high = [e.low for e in found], [e.high for e in found]
            ax.fill_between(steps, low, high, color=colour, alpha=0.1, lw=0)
            ax.plot(steps, [e.mean for e in found], line, color=colour, lw=1.8, label=label)
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("steps")
        ax.set_xlim(0, steps[-1])
        ax.set_title(
            f"{name} of weights{' (mean over all)' if metric == 'wasserstein' else ''}",
            fontsize=9.5,
            loc="left",
        )
    columns = 3 if len(pairs) > 4 else 2
    legend(figure, axes[0], columns, loc="outside upper center", fontsize=8.5)
    return figure
