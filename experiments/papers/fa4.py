"""`roundscope reproduce fa4`: FlashAttention-4's forward in FP8 in the published experiment.

Its errors beside the published ones, and how much too short its output is. The inputs are exact in
E4M3, there are 8,192 keys, and the logits have a given standard deviation; the plans are in
attention.plans.presets. Everything is computed in seconds, so no results file is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.attention.api import attend
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import E4M3
from roundscope.experiments.catalogue import FA4
from roundscope.experiments.framework.command import computed
from roundscope.experiments.framework.estimates import gain, mean, positive, relative_error
from roundscope.experiments.framework.figures.series import legend, series
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, interval, verdict_on
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas
from roundscope.tools.report.terminal import plain

DEVIATIONS = (0.25, 0.5, 1.0, 1.5, 2.0)
# relative errors on a B300, against its BF16 kernel (Dao-AILab/flash-attention, pull request 2694)
PUBLISHED = {
    "fa4-fp8": (0.027, 0.031, 0.136, 0.305, 0.361),
    "fa4-fp8-offset4": (0.027, 0.028, 0.027, 0.024, 0.022),
}
NAMES = {
    "fa4-fp8": "offset 8, threshold 4",
    "fa4-fp8-offset4": "offset 4, threshold 4",
    "fa4-fp8-threshold0": "offset 8, threshold 0",
    "cudnn-mxfp8": "cuDNN's MXFP8: 16 P, threshold e^4",
}
PLANS = tuple(NAMES)
KEYS, QUERIES, WIDTH, TILE = 8192, 128, 128, 128
THIRD = (3 / 4, 4 / 3)  # the range of our error over the published one in which they agree
HEADS = (
    *("plan", "deviation of the logits", "published"),
    *("mean error", "rms error", "O is too short by"),
)
CAPTION = (
    "Lines: the emulated kernel, means over seeds with 95 % intervals. Crosses: published for a"
    " B300. Right: minus the gain <O - exact, exact> / |exact|^2, which nobody had published."
)
CAVEATS = (
    "No Blackwell GPU was there: the plans have the constants of the public code and were not"
    " compared with hardware bit by bit. What the published error is a norm of is not said: the"
    " mean of magnitudes is judged, the rms stands beside it."
)
RULE = "A published error agrees if the 95 % t interval of ours over it is between 3/4 and 4/3."
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan at one standard deviation of the logits; numbers by seed.

    root  |O - exact| / |exact| of root mean squares
    mean  the same of mean magnitudes
    gain  <O - exact, exact> / |exact|^2; below 0, O is too short
    """

    plan: str
    deviation: float
    root: dict[int, float] = field(default_factory=dict)
    mean: dict[int, float] = field(default_factory=dict)
    gain: dict[int, float] = field(default_factory=dict)

    @property
    def published(self) -> float | None:
        """The published error, None where there is none."""
        own = PUBLISHED.get(self.plan)
        return own and own[DEVIATIONS.index(self.deviation)]


Points = Sequence[Point]


def asked(quick: bool) -> Study[Points]:
    """Return the study with few seeds if `quick`, else with all of them."""
    seeds, total = range(FA4.seeds[not quick]), len(PLANS) * len(DEVIATIONS)
    inputs = f"one head of {KEYS:,} keys, {QUERIES} queries and {WIDTH} features a seed"
    title = "How far off is the output, and how much too short?"
    return Study(
        name=FA4.name,
        paper=FA4.paper,
        question=FA4.question,
        scale="quick" if quick else "full",
        unit="points",
        measure=lambda out, draw: computed(FA4.name, total, measured(seeds)),
        answer=answer,
        claims=claims,
        caveats=CAVEATS,
        rules=[RULE],
        figures=[Figure(title=title, draw=picture, caption=CAPTION)],
        tables=[
            Table(
                name="points",
                title="Errors of the output",
                heads=HEADS,
                rows=rows,
                records=plain,
                grouped=True,
                shown=(0, 1, 2, 3, 4, 5),
            )
        ],
        about={"inputs": f"{inputs}; normal numbers up to 3, in E4M3"},
    )


def inputs(seed: int, keys: int = KEYS, queries: int = QUERIES) -> Arrays:
    """Return q, k, v (1, T, 1, 128): normal numbers clipped to [-3, 3] and rounded to E4M3."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        np.clip(rng.standard_normal((1, tokens, 1, WIDTH)), -3.0, 3.0)
        for tokens in (queries, keys, keys)
    )
    q, k, v = (np.asarray(round_to(x, E4M3), np.float64) for x in (q, k, v))
    return q, k, v


def errors(plan: str, deviation: float, x: Arrays) -> tuple[float, float, float]:
    """Return (root, mean, gain) of a `Point`, against binary64 on the same inputs."""

    def out(plan: Plan | str) -> np.ndarray:
        scale = deviation / WIDTH**0.5
        o = attend(*x, plan=plan, engine="numpy", block_q=TILE, block_k=TILE, scale=scale)
        return np.asarray(o, np.float64)

    undescaled = dict.fromkeys((Site.Q, Site.K, Site.V), E4M3)  # descale = 1
    ours, exact = out(Plan.preset(plan).rounded(undescaled)), out("exact")
    off = float(np.abs(ours - exact).sum() / np.abs(exact).sum())
    return relative_error(ours, exact), off, gain(ours, exact)


def measured(seeds: Sequence[int]) -> Iterator[Point]:
    """Yield a point for each plan and standard deviation."""
    given = {seed: inputs(seed) for seed in seeds}
    for plan in PLANS:
        for deviation in DEVIATIONS:
            point = Point(plan=plan, deviation=deviation)
            for seed, x in given.items():
                point.root[seed], point.mean[seed], point.gain[seed] = errors(plan, deviation, x)
            yield point


def claims(points: Points) -> list[Verdict]:
    """Return a verdict for each published error, which compares it with ours."""
    return [
        verdict_on(
            "pull request 2694",
            f"relative error {published:g}",
            f"{NAMES[p.plan]}, deviation {p.deviation:g}",
            THIRD,
            f"{interval(over)} of it",
            over,
            sizes=f"{KEYS:,} keys",
        )
        for p in points
        if (published := p.published) is not None
        for over in [positive({seed: x / published for seed, x in p.mean.items()})]
    ]


def answer(points: Points) -> str:
    """Return a sentence that says by how much O is too short, and when it is not."""
    by = {(p.plan, p.deviation): 100 * mean(p.gain).mean for p in points}
    short = ", ".join(f"{-by['fa4-fp8', d]:.1f}" for d in DEVIATIONS)
    others = max(
        abs(x) for (plan, _), x in by.items() if plan in ("fa4-fp8-offset4", "fa4-fp8-threshold0")
    )
    return (
        "The output is too short since P clips at 448 and its row sum does not. With offset 8 and"
        f" threshold 4 it is {short} % at deviations of {', '.join(f'{d:g}' for d in DEVIATIONS)}."
        f" With offset 4, or threshold 0, it is {others:.1f} % or less."
    )


def rows(points: Points) -> list[list[str]]:
    """Return a line for each plan and standard deviation."""
    return [
        [
            NAMES[p.plan],
            f"{p.deviation:g}",
            "" if p.published is None else f"{p.published:.3f}",
            interval(positive(p.mean)),
            interval(positive(p.root)),
            f"{-100 * mean(p.gain).mean:.1f} %",
        ]
        for p in points
    ]


def picture(points: Points) -> Picture:
    """Draw our errors beside the published ones, and how much too short O is."""
    figure, axes = canvas(3.9, 1, 2)
    left, right = axes[0]
    for plan, colour, marker in zip(PLANS, COLOURS, MARKERS, strict=False):
        own = [p for p in points if p.plan == plan]
        short = [{seed: -100.0 * g for seed, g in p.gain.items()} for p in own]
        for ax, values in ((left, [p.mean for p in own]), (right, short)):
            series(
                ax,
                [p.deviation for p in own],
                values,
                label=NAMES[plan],
                color=colour,
                marker=marker,
                geometric=False,
            )
        if plan in PUBLISHED:
            label = f"published: {NAMES[plan]}"
            left.plot(DEVIATIONS, PUBLISHED[plan], "x", color=colour, ms=9, mew=2, label=label)
    for ax, title in ((left, "Relative error of O"), (right, "O is too short by, %")):
        ax.set_title(title, fontsize=10, loc="left", color=INK)
        ax.set_xlabel("standard deviation of the logits")
        ax.set_ylim(bottom=0.0 if ax is left else None)
    legend(figure, left, 3, loc="outside lower center", fontsize=8)
    return figure
