"""`roundscope reproduce two-level` as a `Study`.

Everything is computed in seconds, so no results file is kept.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure as Picture

from roundscope.experiments.catalogue import TWO_LEVEL
from roundscope.experiments.framework.estimates import Estimate, factor, mean, ratio
from roundscope.experiments.framework.figures.series import (
    COLOURS,
    INK,
    MARKERS,
    canvas,
    series,
)
from roundscope.experiments.framework.loop import computed
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SAME,
    Range,
    Verdict,
    interval,
    judge,
)
from roundscope.experiments.papers.two_level.points import (
    FP32,
    KEYS,
    ONE_SIGNED,
    QUERIES,
    REAL,
    TILE,
    VALUES,
    WIDTH,
    Point,
    measured,
    plans,
)
from roundscope.tools.report.terminal import plain

Points = Sequence[Point]
SLIGHTLY: Range = (1.0, 1.25)
# where it stands, claim, sums, over which, the range of the ratio of errors in which it holds
CLAIMS = (
    ("#104", "the tensor core's own sums lose accuracy in a long context", "never", FP32, LARGER),
    ("#104", "flushed at every tile they do not", "every tile", FP32, SAME),
    (
        "#122",
        "flushed every 4 tiles they lose slightly more",
        "every 4 tiles",
        "every tile",
        SLIGHTLY,
    ),
)
HEADS = ("V", "keys", "accumulator of O", "rms error", "O is too short by")
CAPTION = (
    "Minus the gain <O - exact, exact> / |exact|^2 of FP8 attention on Hopper's tensor cores, whose"
    " sums cut off what they do not hold; geometric means over seeds. FP32: the same with sums in"
    " FP32, which shows what the casts of P to E4M3 do."
)
CAVEATS = (
    "The sums are those of Hopper's tensor cores, bit by bit"
    " (docs/notes/measurements.md); vLLM's kernels"
    " were not compared. One-signed V is made to show the effect; rows of real tensors are drawn"
    " from 512, so keys repeat. Published is a model's accuracy in a search."
)


def asked(quick: bool) -> Study[Points]:
    """Return the study with few seeds if `quick`, else with all of them."""
    return study(range(TWO_LEVEL.seeds[not quick]), "quick" if quick else "full")


def study(seeds: Sequence[int], scale: str = "") -> Study[Points]:
    """Return the study with these seeds."""
    total = len(VALUES) * len(KEYS) * len(plans())
    return Study(
        name=TWO_LEVEL.name,
        paper=TWO_LEVEL.paper,
        question=TWO_LEVEL.question,
        scale=scale,
        unit="points",
        measure=lambda out, draw: computed(TWO_LEVEL.name, total, measured(seeds)),
        answer=answer,
        claims=claims,
        caveats=CAVEATS,
        rules=[
            "A claim holds if the 95 % t interval of the ratio of errors is where it says: "
            "5 % or more above 1, within 5 % of it, up to 25 % above."
        ],
        figures=[Figure(title="How much too short is the output?", draw=picture, caption=CAPTION)],
        tables=[
            Table(
                name="points",
                title="Errors of the output",
                heads=HEADS,
                rows=rows,
                records=plain,
                grouped=True,
                shown=(0, 1, 2, 3, 4),
            )
        ],
        about={
            "inputs": (
                f"one head of {QUERIES} queries and {WIDTH} features a seed, in E4M3, tiles of"
                f" {TILE} keys"
            )
        },
    )


def _by(points: Points, keys: int) -> dict[tuple[str, str], Point]:
    return {(p.values, p.sums): p for p in points if p.keys == keys}


def claims(points: Points) -> list[Verdict]:
    """Return a verdict for each claim on each kind of values, at the largest number of keys."""
    by = _by(points, KEYS[-1])
    return [
        _verdict(values, by[values, own], by[values, other], where, claim, holds)
        for where, claim, own, other, holds in CLAIMS
        for values in VALUES
    ]


def _verdict(
    values: str, own: Point, other: Point, where: str, claim: str, holds: Range
) -> Verdict:
    over: Estimate = ratio(own.error, other.error)
    return Verdict(
        figure=f"pull request {where}",
        claim=claim,
        case=values,
        sizes=f"{KEYS[-1]:,} keys",
        word=judge(over, holds),
        measured=(
            f"error {interval(over)} of that"
            f" {'of ' if other.sums == FP32 else 'flushed at '}{other.sums}"
        ),
        estimate=over,
    )


def _short(point: Point) -> float:
    return -100.0 * mean(point.gain).mean


def answer(points: Points) -> str:
    """Return a sentence that says how much too short O is at the largest number of keys."""
    by = _by(points, KEYS[-1])
    flushed = ("never", "every 4 tiles", "every tile", FP32)
    shares = "; ".join(
        f"{values}: {', '.join(f'{_short(by[values, name]):.2g} % {name}' for name in flushed)}"
        for values in (ONE_SIGNED, REAL)
    )
    return (
        f"How much too short O is with {KEYS[-1]:,} keys, by how often its accumulator is flushed:"
        f" {shares}."
    )


def rows(points: Points) -> list[list[str]]:
    """Return a line for each point."""
    return [
        [p.values, f"{p.keys:,}", p.sums, interval(factor(p.error)), f"{_short(p):.2g} %"]
        for p in points
    ]


def picture(points: Points) -> Picture:
    """Draw how much too short O is against keys, for one-signed V and for real tensors."""
    figure, axes = canvas(3.9, 1, 2)
    for ax, values in zip(axes[0], (ONE_SIGNED, REAL), strict=True):
        for name, colour, marker in zip(plans(), COLOURS, MARKERS, strict=False):
            own = [p for p in points if p.values == values and p.sums == name]
            short = [{seed: -100.0 * g for seed, g in p.gain.items()} for p in own]
            label = {FP32: FP32, "never": "never flushed"}.get(name, f"flushed {name}")
            series(
                ax,
                [p.keys for p in own],
                short,
                label=label,
                color=colour,
                marker=marker,
            )
        ax.set(xscale="log", yscale="log", xlabel="keys", ylim=(0.03, 40))
        ax.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        ax.set_xticks(KEYS, [f"{keys:,}" for keys in KEYS])
        ax.minorticks_off()
        ax.set_title(f"O is too short by, %: {values}", fontsize=10, loc="left", color=INK)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        fontsize=8,
        frameon=False,
    )
    return figure
