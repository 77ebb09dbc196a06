"""Pictures of cases: a row each, a dot for every seed where it diverged."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.framework.figures.series import CALM, LETHAL
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.topics.cases import Case, Found
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.results.run import Run

ROW = 0.27


def strips(found: Found) -> Figure:
    """A panel per group under each other: steps to divergence along, seeds as dots; a hollow dot at
    the end lived.
    """
    groups = found.groups()
    sizes = [len(own) for own in groups.values()]
    figure, axes = canvas(
        0.6 + ROW * sum(sizes) + 0.42 * len(sizes),
        len(sizes),
        1,
        sharex=True,
        gridspec_kw={"height_ratios": sizes},
    )
    steps = max(case.dose.steps for case in found.cases)
    for ax, (group, own) in zip(axes.flat, groups.items(), strict=True):
        ax.set_title(group, fontsize=9.5, loc="left", color=INK)
        for place, results in enumerate(own.values()):
            _row(ax, place, results, steps)
        ax.set_yticks(range(len(own)), [case.name for case in own])
        ax.set_ylim(len(own) - 0.45, -0.55)
        ax.set_xlim(0, 1.16 * steps)
        ax.set_xticks(np.linspace(0, steps, 6))
        _counts(ax, found, own, steps)
    axes.flat[-1].set_xlabel("steps to divergence; hollow: none until the end")
    return figure


def _row(ax: Axes, place: int, results: list[Run[Dose]], steps: int) -> None:
    ax.plot([0, steps], [place, place], color="#e4e7eb", lw=0.8, zorder=0)
    lived = [r for r in results if r.diverged is None]
    died = [float(r.diverged) for r in results if r.diverged is not None]
    ax.plot(died, [place] * len(died), "o", color=LETHAL, ms=6, alpha=0.75, mew=0)
    spread = [steps * (1 - 0.013 * i) for i in range(len(lived))]
    ax.plot(spread, [place] * len(lived), "o", color=CALM, ms=5, mfc="white")


def _counts(ax: Axes, found: Found, own: dict[Case, list[Run[Dose]]], steps: int) -> None:
    for place, case in enumerate(own):
        t = found.time(case)
        colour = LETHAL if 2 * t.diverged > t.runs else INK if t.diverged else QUIET
        ax.text(
            1.03 * steps,
            place,
            f"{t.diverged} of {t.runs}",
            va="center",
            fontsize=8.5,
            color=colour,
        )
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
