"""The study `scaling`: the most bits at which toward zero still kills.

It is measured against rate, width, depth and context.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from roundscope.attention.sites import Site
from roundscope.experiments.framework.verdicts import number
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.scale import FULL, MOST_BITS, QUICK, ZERO
from roundscope.experiments.questions.dose.topics.cases import Case, Found, Topic
from roundscope.experiments.train.config import Config
from roundscope.tools.report.pictures import INK, canvas

QUESTION = "With what does the threshold of toward zero scale?"
CAPTION = (
    "Runs that diverged of all seeds, by p and by one factor at a time; the frame is p*, the most"
    " significand bits at which more than half did. The value in bold is the same model in every"
    " panel. Top: nothing rounded but to FP32."
)
NOTES = (
    "Toward zero at O as delta reads it (OD), all else FP32; the other sizes stay as they are"
    " (heads too: a wider model has wider heads). A smaller rate is slower, so part of its higher"
    " threshold is that a run of as many steps gets less far; runs are of equally many steps."
)
EXACT = "FP32"
RED = LinearSegmentedColormap.from_list("red", ["#ffffff", "#d55e00"])


class Column(NamedTuple):
    """One value of one factor."""

    factor: str
    value: float
    usual: bool


def quick() -> Topic:
    """Return the topic for two cores, which take minutes."""
    return _topic(
        QUICK.config,
        3e-2,
        {"lr": (1e-2, 3e-2), "depth": (1, 2)},
        (2, 4, 6),
        steps=400,
        seeds=(0, 1, 2),
    )


def full() -> Topic:
    """Return the topic for a GPU."""
    factors = {
        "lr": (3e-3, 1e-2, 3e-2),
        "width": (64, 128, 256),
        "depth": (2, 4, 8),
        "context": (64, 128, 256),
    }
    return _topic(FULL.config, 1e-2, factors, (4, 5, 6, 7, 8), steps=1000, seeds=(0, 1, 2, 3, 4))


def _topic(
    config: Config,
    rate: float,
    factors: Mapping[str, tuple[float, ...]],
    bits: tuple[int, ...],
    *,
    steps: int,
    seeds: tuple[int, ...],
) -> Topic:
    usual = {"lr": rate, "width": config.width, "depth": config.layers, "context": config.context}
    columns = [
        Column(name, value, value == usual[name])
        for name, values in factors.items()
        for value in values
    ]
    cases = [
        Case(group=group_of(c), name=name, dose=dose)
        for c in columns
        for name, dose in _column_doses(c, bits, rate, steps)
    ]
    return Topic(
        question=QUESTION,
        config=config,
        cases=tuple(cases),
        seeds=seeds,
        answer=lambda found: answer(found, columns),
        draw=lambda found: draw(found, columns),
        caption=CAPTION,
        notes=NOTES,
        about="one factor at a time around this model",
        alone=True,
    )


def group_of(column: Column) -> str:
    """Return the name that the cases of a column share."""
    return f"{column.factor} {column.value:g}"


def _column_doses(
    column: Column, bits: tuple[int, ...], rate: float, steps: int
) -> list[tuple[str, Dose]]:
    """Return FP32, then the doses from the largest p down."""
    own = [_dose(column, p, rate, steps) for p in reversed(bits)]
    return [(EXACT, own[0].exact), *((f"p = {dose.bits}", dose) for dose in own)]


def _dose(column: Column, bits: int, rate: float, steps: int) -> Dose:
    name = "layers" if column.factor == "depth" else column.factor
    words = () if column.usual or name == "lr" else (f"{name}={column.value:g}",)
    return Dose(
        site=Site.OD,
        mode=ZERO,
        bits=bits,
        rate=column.value if name == "lr" else rate,
        steps=steps,
        words=words,
    )


def threshold(found: Found, column: Column) -> int | None:
    """Return p*, the most bits at which more than half of the seeds diverged.

    None if they did so at no p; MOST_BITS where FP32 did.
    """
    own = [case for case in found.cases if case.group == group_of(column)]
    return max((case.dose.bits for case in own if found.killed(case)), default=None)


def answer(found: Found, columns: list[Column]) -> str:
    """Return p* along each factor, in a sentence."""
    bits = {case.dose.bits for case in found.cases} - {MOST_BITS}
    parts = []
    for factor in dict.fromkeys(c.factor for c in columns):
        panel = [c for c in columns if c.factor == factor]
        values = ", ".join(number(c.value) for c in panel)
        stars = ", ".join(_star(threshold(found, c), bits) for c in panel)
        parts.append(f"{factor} {values}: {stars}")
    seeds = len(found.topic.seeds)
    # by dose, since the usual model's exact arm is in every panel
    exact = {case.dose: found.time(case) for case in found.cases if case.name == EXACT}
    lost, runs = (sum(getattr(t, name) for t in exact.values()) for name in ("diverged", "runs"))
    return (
        f"p*, the most bits at which toward zero made more than half of {seeds} seeds diverge, is"
        f" for {'; '.join(parts)}. In FP32 {lost} of {runs} diverged."
    )


def _star(p: int | None, bits: set[int]) -> str:
    if p is None:
        return f"below {min(bits)}"
    if p == MOST_BITS:
        return "not defined (FP32 diverges)"
    return f"{p} or more" if p == max(bits) else str(p)


def draw(found: Found, columns: list[Column]) -> Figure:
    """Draw a panel per factor: how many runs diverged, by p and value."""
    factors = list(dict.fromkeys(c.factor for c in columns))
    bits = sorted({case.dose.bits for case in found.cases})
    figure, axes = canvas(1.5 + 0.33 * len(bits), 1, len(factors), sharey=True)
    for ax, factor in zip(axes.flat, factors, strict=True):
        own = [c for c in columns if c.factor == factor]
        for x, column in enumerate(own):
            _column(ax, x, found, column, bits)
        ax.set_xticks(range(len(own)), [f"{c.value:g}" for c in own])
        for label, column in zip(ax.get_xticklabels(), own, strict=True):
            label.set_fontweight("bold" if column.usual else "normal")
        ax.set_xlabel({"lr": "peak learning rate", "depth": "layers"}.get(factor, factor))
        ax.set_xlim(-0.5, len(own) - 0.5)
        ax.set_ylim(-0.5, len(bits) - 0.5)
        ax.set_yticks(range(len(bits)), [EXACT if p == MOST_BITS else str(p) for p in bits])
    axes[0, 0].set_ylabel("significand bits p")
    return figure


def _column(ax: Any, x: int, found: Found, column: Column, bits: list[int]) -> None:
    star = threshold(found, column)
    for case in found.cases:
        if case.group != group_of(column):
            continue
        t, p = found.time(case), case.dose.bits
        share, y = t.diverged / t.runs, bits.index(p)
        ax.bar(
            x,
            0.94,
            0.94,
            y - 0.47,
            color=RED(0.85 * share),
            ec="#cbd2d9",
            lw=2.2 if p == star else 0.5,
            zorder=1,
        )
        ax.text(
            x,
            y,
            f"{t.diverged} of {t.runs}",
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            zorder=3,
        )
        if p == star:
            ax.bar(x, 0.94, 0.94, y - 0.47, fill=False, ec=INK, lw=1.6, zorder=2)
