"""The picture of the rest of dS."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.framework.figures.series import CALM, INK, LETHAL, canvas
from roundscope.experiments.papers.failure_2510_04212.claims.controls import split
from roundscope.experiments.papers.failure_2510_04212.drift import drift, share, steady
from roundscope.experiments.papers.failure_2510_04212.results import Own, Results

NONE = 1e-9  # the place at which a drift of 0 is drawn


def drifts(r: Results) -> Figure | None:
    """Draw every run: its drift by case, and its size against its steadiness.

    None where no look was taken.
    """
    if not any(split(r)):
        return None
    figure, axes = canvas(3.6, 1, 2)
    names = [case.name for case in r.scale.cases]
    for i, name in enumerate(names):
        own = {
            run.condition: run
            for (case, _), runs in r.by.items()
            if case == name
            for run in runs
            if math.isfinite(drift(run))
        }
        _strip(axes[0, 0], i, list(own.values()))
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_xlabel("drift: |sum R| / sum |dW_Q|")
    axes[0, 0].set_ylabel("case")
    _plane(axes[0, 1], r)
    _legend(figure)
    return figure


def _strip(ax: Axes, at: int, own: Own) -> None:
    for up, dead in ((-0.18, True), (0.18, False)):
        x = [max(drift(run), NONE) for run in own if (run.diverged is not None) == dead]
        aside = 0.12 * np.sin(2.4 * np.arange(len(x)))  # so that dots do not hide each other
        ax.plot(x, at + up + aside, "o", color=LETHAL if dead else CALM, ms=3.5, alpha=0.6, mew=0)


def _plane(ax: Axes, r: Results) -> None:
    for own, colour in zip(split(r), (LETHAL, CALM), strict=True):
        ax.plot(
            [max(share(run), NONE) for run in own],
            [steady(run) for run in own],
            "o",
            color=colour,
            ms=3.5,
            alpha=0.6,
            mew=0,
        )
    ax.set_xscale("log")
    ax.set_ylim(0, 1.03)
    ax.set_xlabel("share: sum |R| / sum |dW_Q|")
    ax.set_ylabel("steady: |sum R| / sum |R|")


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    found = (("diverged later", LETHAL), ("did not diverge", CALM))
    lines = [
        Line2D([], [], color=colour, marker="o", lw=0, ms=5, label=words) for words, colour in found
    ]
    figure.legend(
        handles=lines,
        loc="outside upper center",
        ncols=2,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
