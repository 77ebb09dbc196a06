"""The study `scaling`: the most bits at which toward zero still kills, against rate, width, depth and context."""

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from attention.sites import Site
from experiments.dose.arms import Dose
from experiments.dose.cases import Case, Found, Topic
from experiments.dose.scale import FULL, QUICK, ZERO
from experiments.golden.verdicts import number
from experiments.plots import INK
from experiments.sweep.plots import canvas
from experiments.train.config import Config

QUESTION = "With what does the threshold of toward zero scale?"
CAPTION = (
    "Runs that diverged of all seeds, by p and by one factor at a time; the frame is p*, the most significand bits at which more than"
    " half did. The value in bold is the same model in every panel."
)
NOTES = (
    "Toward zero at O as delta reads it (OD), all else FP32; the other sizes stay as they are (heads too: a wider model has wider "
    "heads). A smaller rate is slower, so part of its higher threshold is that a run of as many steps gets less far; runs are of "
    "equally many steps."
)
RED = LinearSegmentedColormap.from_list("red", ["#ffffff", "#d55e00"])


class Column(NamedTuple):
    """One value of one factor."""

    factor: str
    value: float
    usual: bool


def quick() -> Topic:
    """Two cores: minutes."""
    return _topic(QUICK.config, 3e-2, {"lr": (1e-2, 3e-2), "depth": (1, 2)}, (2, 4, 6), steps=400, seeds=(0, 1, 2))


def full() -> Topic:
    """A GPU."""
    factors = {"lr": (3e-3, 1e-2, 3e-2), "width": (64, 128, 256), "depth": (2, 4, 8), "context": (64, 128, 256)}
    return _topic(FULL.config, 1e-2, factors, (4, 5, 6, 7, 8), steps=1000, seeds=(0, 1, 2, 3, 4))


def _topic(
    config: Config, rate: float, factors: Mapping[str, tuple[float, ...]], bits: tuple[int, ...], *, steps: int, seeds: tuple[int, ...]
) -> Topic:
    usual = {"lr": rate, "width": config.width, "depth": config.layers, "context": config.context}
    columns = [Column(name, value, value == usual[name]) for name, values in factors.items() for value in values]
    cases = [Case(group=f"{c.factor} {c.value:g}", name=f"p = {p}", dose=_dose(c, p, rate, steps)) for c in columns for p in reversed(bits)]
    return Topic(
        question=QUESTION, config=config, cases=tuple(cases), seeds=seeds, answer=lambda found: answer(found, columns),
        draw=lambda found: draw(found, columns), caption=CAPTION, notes=NOTES, about="one factor at a time around this model", alone=True,
    )  # fmt: skip


def _dose(column: Column, bits: int, rate: float, steps: int) -> Dose:
    name = "layers" if column.factor == "depth" else column.factor
    words = () if column.usual or name == "lr" else (f"{name}={column.value:g}",)
    return Dose(site=Site.OD, mode=ZERO, bits=bits, rate=column.value if name == "lr" else rate, steps=steps, words=words)


def threshold(found: Found, column: Column) -> int | None:
    """p*: the most bits at which more than half of the seeds diverged, None if they did at no p."""
    own = [case for case in found.cases if case.group == f"{column.factor} {column.value:g}"]
    return max((case.dose.bits for case in own if found.killed(case)), default=None)


def answer(found: Found, columns: list[Column]) -> str:
    """p* along each factor."""
    bits = {case.dose.bits for case in found.cases}
    said = []
    for factor in dict.fromkeys(c.factor for c in columns):
        own = [c for c in columns if c.factor == factor]
        said.append(f"{factor} {', '.join(number(c.value) for c in own)}: {', '.join(_star(threshold(found, c), bits) for c in own)}")
    seeds = len(found.topic.seeds)
    return f"p*, the most bits at which toward zero made more than half of {seeds} seeds diverge, is for {'; '.join(said)}."


def _star(p: int | None, bits: set[int]) -> str:
    if p is None:
        return f"below {min(bits)}"
    return f"{p} or more" if p == max(bits) else str(p)


def draw(found: Found, columns: list[Column]) -> Figure:
    """A panel per factor: how many diverged, by p and value."""
    factors = list(dict.fromkeys(c.factor for c in columns))
    bits = sorted({case.dose.bits for case in found.cases})
    figure, axes = canvas(1.5 + 0.36 * len(bits), 1, len(factors), sharey=True)
    for ax, factor in zip(axes.flat, factors, strict=True):
        own = [c for c in columns if c.factor == factor]
        for x, column in enumerate(own):
            _column(ax, x, found, column)
        ax.set_xticks(range(len(own)), [f"{c.value:g}" for c in own])
        for label, column in zip(ax.get_xticklabels(), own, strict=True):
            label.set_fontweight("bold" if column.usual else "normal")
        ax.set_xlabel({"lr": "peak learning rate", "depth": "layers"}.get(factor, factor))
        ax.set_xlim(-0.5, len(own) - 0.5)
        ax.set_ylim(min(bits) - 0.5, max(bits) + 0.5)
        ax.set_yticks(bits)
    axes[0, 0].set_ylabel("significand bits p")
    return figure


def _column(ax: object, x: int, found: Found, column: Column) -> None:
    star = threshold(found, column)
    for case in found.cases:
        if case.group != f"{column.factor} {column.value:g}":
            continue
        t, p = found.time(case), case.dose.bits
        share = t.diverged / t.runs
        ax.bar(x, 0.94, 0.94, p - 0.47, color=RED(0.85 * share), ec="#cbd2d9", lw=2.2 if p == star else 0.5, zorder=1)  # type: ignore[attr-defined]
        ax.text(x, p, f"{t.diverged} of {t.runs}", ha="center", va="center", fontsize=8, color=INK, zorder=3)  # type: ignore[attr-defined]
        if p == star:
            ax.bar(x, 0.94, 0.94, p - 0.47, fill=False, ec=INK, lw=1.6, zorder=2)  # type: ignore[attr-defined]
