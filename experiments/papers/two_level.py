"""`roundscope reproduce two-level`: FP8 attention on Hopper over long rows.

How much too short its output becomes, by the number of keys and by the values, and what flushing
the accumulator of O repairs; the arithmetic is in attention.softmax.flushed and
emu.sums.tensor_cores. Everything is computed in seconds, so no results file is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.attention.api import attend
from roundscope.attention.plans.plan import Plan
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import E4M3
from roundscope.experiments.catalogue import TWO_LEVEL
from roundscope.experiments.framework.command import computed
from roundscope.experiments.framework.estimates import factor, gain, mean, ratio, relative_error
from roundscope.experiments.framework.figures.series import legend, series
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SAME,
    Range,
    Verdict,
    interval,
    verdict_on,
)
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas
from roundscope.tools.report.terminal import plain
from roundscope.tools.tensors.layers import read_layers, sample_path

KEYS = (1024, 4096, 16384)
QUERIES, WIDTH = 64, 128
TILE = 192  # the keys of a tile of vLLM's FlashAttention-3 in FP8 with 128 features
FP32 = "sums in FP32"
# by the name of its sums: after how many tiles the accumulator of O is flushed; 0: never
FLUSHED = {"never": 0, "every tile": 1, "every 4 tiles": 4, "every 16 tiles": 16}
ONE_SIGNED, NORMAL, REAL = "one-signed V", "normal V", "rows of real tensors"
VALUES = (NORMAL, REAL, ONE_SIGNED)
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
    "The sums are those of Hopper's tensor cores, bit by bit (docs/notes/measurements.md); vLLM's"
    " kernels were not compared. One-signed V is made to show the effect; rows of real tensors are"
    " drawn from 512, so keys repeat. Published is a model's accuracy in a search."
)
RULE = (
    "A claim holds if the 95 % t interval of the ratio of errors is where it says: "
    "5 % or more above 1, within 5 % of it, up to 25 % above."
)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An order of sums on one number of keys; numbers by seed.

    sums   FP32, or a name of FLUSHED for Hopper's tensor cores
    error  |O - exact| / |exact| of root mean squares
    gain   <O - exact, exact> / |exact|^2; below 0, O is too short
    """

    values: str
    keys: int
    sums: str
    error: dict[int, float] = field(default_factory=dict)
    gain: dict[int, float] = field(default_factory=dict)

    @property
    def short(self) -> float:
        """By how many per cent O is too short, on average over seeds."""
        return -100.0 * mean(self.gain).mean


Points = Sequence[Point]


def asked(quick: bool) -> Study[Points]:
    """Return the study with few seeds if `quick`, else with all of them."""
    seeds, total = range(TWO_LEVEL.seeds[not quick]), len(VALUES) * len(KEYS) * len(plans())
    inputs = f"one head of {QUERIES} queries and {WIDTH} features a seed, in E4M3"
    return Study(
        name=TWO_LEVEL.name,
        paper=TWO_LEVEL.paper,
        question=TWO_LEVEL.question,
        scale="quick" if quick else "full",
        unit="points",
        measure=lambda out, draw: computed(TWO_LEVEL.name, total, measured(seeds)),
        answer=answer,
        claims=claims,
        caveats=CAVEATS,
        rules=[RULE],
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
        about={"inputs": f"{inputs}, tiles of {TILE} keys"},
    )


def plans() -> dict[str, Plan]:
    """Return the plans by the name of their sums: FP32, then the tensor core's."""
    cores = Plan.preset("fa3-fp8@hopper")
    return {FP32: Plan.preset("fa3-fp8")} | {
        name: cores.changed(f"flushed_tiles={tiles}") for name, tiles in FLUSHED.items()
    }


def inputs(values: str, keys: int, seed: int) -> Arrays:
    """Return q, k, v (1, T, 1, 128) in E4M3; real ones are rows of layer 4, four heads abreast."""
    rng = np.random.default_rng((seed, keys))
    if values == REAL:
        [layer] = read_layers(sample_path(), layer="layer4")
        arrays = []
        for x, size in ((layer.q, QUERIES), (layer.k, keys), (layer.v, keys)):
            four = np.concatenate([x[0, :, head] for head in range(4)], axis=1)
            arrays.append(four[rng.integers(0, x.shape[1], size)])
    else:
        arrays = [rng.standard_normal((size, WIDTH)) for size in (QUERIES, keys, keys)]
        arrays[2] = np.abs(arrays[2]) if values == ONE_SIGNED else arrays[2]
    q, k, v = (np.asarray(round_to(x, E4M3), np.float64)[None, :, None] for x in arrays)
    return q, k, v


def measured(seeds: Sequence[int]) -> Iterator[Point]:
    """Yield a point for each kind of values, number of keys and order of sums."""

    def out(plan: Plan | str, x: Arrays) -> np.ndarray:
        o = attend(*x, plan=plan, engine="numpy", block_q=QUERIES, block_k=TILE)
        return np.asarray(o, np.float64)

    for values in VALUES:
        for keys in KEYS:
            given = {seed: inputs(values, keys, seed) for seed in seeds}
            exact = {seed: out("exact", x) for seed, x in given.items()}
            for name, plan in plans().items():
                point = Point(values=values, keys=keys, sums=name)
                for seed, x in given.items():
                    own = out(plan, x)
                    point.error[seed] = relative_error(own, exact[seed])
                    point.gain[seed] = gain(own, exact[seed])
                yield point


def _longest(points: Points) -> dict[tuple[str, str], Point]:
    """Return (values, sums) -> the point at the largest number of keys."""
    return {(p.values, p.sums): p for p in points if p.keys == KEYS[-1]}


def claims(points: Points) -> Iterator[Verdict]:
    """Yield a verdict for each claim on each kind of values, at the largest number of keys."""
    by, sizes = _longest(points), f"{KEYS[-1]:,} keys"
    for (where, claim, own, other, holds), values in product(CLAIMS, VALUES):
        over = ratio(by[values, own].error, by[values, other].error)
        told = f"error {interval(over)} of that {'of ' if other == FP32 else 'flushed at '}{other}"
        place = f"pull request {where}"
        yield verdict_on(place, claim, values, holds, told, over, sizes=sizes)


def answer(points: Points) -> str:
    """Return in sentences how much too short O is at the largest number of keys."""
    by = _longest(points)
    flushed = ("never", "every 4 tiles", "every tile", FP32)
    one, real = ([f"{by[v, f].short:.2g} %" for f in flushed] for v in (ONE_SIGNED, REAL))
    return (
        f"With {KEYS[-1]:,} keys of one-signed V, O is {one[0]} too short if its accumulator is"
        f" never flushed. It is {one[1]} too short with a flush every 4 tiles, {one[2]} with one"
        f" every tile, and {one[3]} with sums in FP32. On rows of real tensors these four are"
        f" {', '.join(real)}."
    )


def rows(points: Points) -> list[list[str]]:
    """Return a line for each point."""
    return [
        [p.values, f"{p.keys:,}", p.sums, interval(factor(p.error)), f"{p.short:.2g} %"]
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
            series(ax, [p.keys for p in own], short, label=label, color=colour, marker=marker)
        ax.set(xscale="log", yscale="log", xlabel="keys", ylim=(0.03, 40))
        ax.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        ax.set_xticks(KEYS, [f"{keys:,}" for keys in KEYS])
        ax.minorticks_off()
        ax.set_title(f"O is too short by, %: {values}", fontsize=10, loc="left", color=INK)
    legend(figure, axes[0, 0], 5, loc="outside lower center", fontsize=8)
    return figure
