"""`roundscope reproduce fa4` as a `Study`.

Everything is computed in seconds, so no results file is kept.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure as Picture

from roundscope.experiments.catalogue import FA4
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.figures.series import (
    COLOURS,
    INK,
    MARKERS,
    canvas,
    series,
)
from roundscope.experiments.framework.loop import computed
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, interval, judge
from roundscope.experiments.papers.fa4.points import (
    DEVIATIONS,
    KEYS,
    PLANS,
    PUBLISHED,
    QUERIES,
    WIDTH,
    Point,
    measured,
)
from roundscope.tools.report.terminal import plain

Points = Sequence[Point]
THIRD = (3 / 4, 4 / 3)  # the range of our error over the published one in which they agree
NAMES = {
    "fa4-fp8": "offset 8, threshold 4",
    "fa4-fp8-offset4": "offset 4, threshold 4",
    "fa4-fp8-threshold0": "offset 8, threshold 0",
    "cudnn-mxfp8": "cuDNN's MXFP8: 16 P, threshold e^4",
}
HEADS = (
    "plan",
    "deviation of the logits",
    "published",
    "mean error",
    "rms error",
    "O is too short by",
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


def asked(quick: bool) -> Study[Points]:
    """Return the study with few seeds if `quick`, else with all of them."""
    return study(range(FA4.seeds[not quick]), "quick" if quick else "full")


def study(seeds: Sequence[int], scale: str = "") -> Study[Points]:
    """Return the study with these seeds."""
    return Study(
        name=FA4.name,
        paper=FA4.paper,
        question=FA4.question,
        scale=scale,
        unit="points",
        measure=lambda out, draw: computed(FA4.name, len(PLANS) * len(DEVIATIONS), measured(seeds)),
        answer=answer,
        claims=claims,
        caveats=CAVEATS,
        rules=[
            "A published error agrees if the 95 % t interval of ours over it is between 3/4 and"
            " 4/3."
        ],
        figures=[
            Figure(
                title="How far off is the output, and how much too short?",
                draw=picture,
                caption=CAPTION,
            )
        ],
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
        about={
            "inputs": (
                f"one head of {KEYS:,} keys, {QUERIES} queries and {WIDTH} features a seed; normal"
                " numbers up to 3, in E4M3"
            )
        },
    )


def _published(point: Point) -> float | None:
    if point.plan not in PUBLISHED:
        return None
    return PUBLISHED[point.plan][DEVIATIONS.index(point.deviation)]


def claims(points: Points) -> list[Verdict]:
    """Return a verdict for each published error, which compares it with ours."""
    return [
        _verdict(point, published)
        for point in points
        if (published := _published(point)) is not None
    ]


def _verdict(point: Point, published: float) -> Verdict:
    over: Estimate = mean({seed: x / published for seed, x in point.mean.items()})
    return Verdict(
        figure="pull request 2694",
        claim=f"relative error {published:g}",
        case=f"{NAMES[point.plan]}, deviation {point.deviation:g}",
        sizes=f"{KEYS:,} keys",
        word=judge(over, THIRD),
        measured=f"{interval(over)} of it",
        estimate=over,
    )


def answer(points: Points) -> str:
    """Return a sentence that says by how much O is too short, and when it is not."""
    by = {(p.plan, p.deviation): 100 * mean(p.gain).mean for p in points}
    short = ", ".join(f"{-by['fa4-fp8', d]:.1f}" for d in DEVIATIONS)
    others = max(
        abs(x) for (plan, _), x in by.items() if plan in ("fa4-fp8-offset4", "fa4-fp8-threshold0")
    )
    return (
        "P clips at 448 and its row sum does not, so with offset 8 and threshold 4 the output is"
        f" too short by {short} % at deviations of {', '.join(f'{d:g}' for d in DEVIATIONS)}; with"
        f" offset 4, or threshold 0, by {others:.1f} % or less."
    )


def rows(points: Points) -> list[list[str]]:
    """Return a line for each plan and standard deviation."""

    def shown(p: Point) -> str:
        return "" if (x := _published(p)) is None else f"{x:.3f}"

    return [
        [
            NAMES[p.plan],
            f"{p.deviation:g}",
            shown(p),
            interval(mean(p.mean)),
            interval(mean(p.root)),
            f"{-100 * mean(p.gain).mean:.1f} %",
        ]
        for p in points
    ]


def picture(points: Points) -> Picture:
    """Draw our errors beside the published ones, and how much too short O is."""
    figure, axes = canvas(3.9, 1, 2)
    for plan, colour, marker in zip(PLANS, COLOURS, MARKERS, strict=False):
        own = [p for p in points if p.plan == plan]
        x = [p.deviation for p in own]
        series(
            axes[0, 0],
            x,
            [p.mean for p in own],
            label=NAMES[plan],
            color=colour,
            marker=marker,
            geometric=False,
        )
        if plan in PUBLISHED:
            axes[0, 0].plot(
                DEVIATIONS,
                PUBLISHED[plan],
                "x",
                color=colour,
                ms=9,
                mew=2,
                label=f"published: {NAMES[plan]}",
            )
        short = [{seed: -100.0 * g for seed, g in p.gain.items()} for p in own]
        series(
            axes[0, 1], x, short, label=NAMES[plan], color=colour, marker=marker, geometric=False
        )
    for ax, title in zip(axes[0], ("Relative error of O", "O is too short by, %"), strict=True):
        ax.set_title(title, fontsize=10, loc="left", color=INK)
        ax.set_xlabel("standard deviation of the logits")
        ax.set_ylim(bottom=0.0 if ax is axes[0, 0] else None)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    return figure
