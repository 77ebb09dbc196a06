"""The pictures of the rest of dS and of the factorial."""

import math
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.studies.failure.claims_controls import split
from roundscope.experiments.studies.failure.pictures import cells
from roundscope.experiments.studies.failure.results import Result, Results
from roundscope.experiments.studies.failure.rows import HALVES, cell
from roundscope.experiments.studies.failure.scale import Scale
from roundscope.experiments.sweep.report.plots import COLOURS, canvas
from roundscope.experiments.trace.plots import INK

DEAD, ALIVE = COLOURS[1], COLOURS[0]
NONE = 1e-9  # where a drift of 0 is drawn


def drifts(r: Results, scale: Scale) -> Figure | None:
    """Every run: its drift by case; and size against steadiness. None where no look was taken."""
    if not any(split(r)):
        return None
    figure, axes = canvas(3.6, 1, 2)
    names = [case.name for case in scale.cases]
    for i, name in enumerate(names):
        own = {run.trial: run for (case, _), runs in r.by.items() if case == name for run in runs if math.isfinite(run.drift)}
        _strip(axes[0, 0], i, list(own.values()))
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_xlabel("drift: |sum R| / sum |dW_Q|")
    axes[0, 0].set_ylabel("case")
    _plane(axes[0, 1], r)
    _legend(figure)
    return figure


def _strip(ax: Axes, at: int, own: list[Result]) -> None:
    for up, dead in ((-0.18, True), (0.18, False)):
        x = [max(run.drift, NONE) for run in own if (run.diverged is not None) == dead]
        aside = 0.12 * np.sin(2.4 * np.arange(len(x)))  # so that dots do not hide each other
        ax.plot(x, at + up + aside, "o", color=DEAD if dead else ALIVE, ms=3.5, alpha=0.6, mew=0)


def _plane(ax: Axes, r: Results) -> None:
    for own, colour in zip(split(r), (DEAD, ALIVE), strict=True):
        ax.plot([max(run.share, NONE) for run in own], [run.steady for run in own], "o", color=colour, ms=3.5, alpha=0.6, mew=0)
    ax.set_xscale("log")
    ax.set_ylim(0, 1)
    ax.set_xlabel("share: sum |R| / sum |dW_Q|")
    ax.set_ylabel("steady: |sum R| / sum |R|")


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    found = (("diverged later", DEAD), ("did not diverge", ALIVE))
    lines = [Line2D([], [], color=colour, marker="o", lw=0, ms=5, label=words) for words, colour in found]
    figure.legend(handles=lines, loc="outside upper center", ncols=2, fontsize=9, frameon=False, labelcolor=INK)


def factorial(r: Results, scale: Scale) -> Figure | None:
    """Where O is rounded x scores x statistics (rows), tiles (columns), a panel for each case. None where it was not run."""
    found = [case for case in scale.cases if r.of(case.name, cell("both", "FP32", "FP32", 1))]
    if not found:
        return None
    lines = list(product(HALVES, ("BF16", "FP32"), ("BF16", "FP32")))
    figure, axes = canvas(1.0 + 0.27 * len(lines), 1, len(found), sharey=True)
    for ax, case in zip(axes[0], found, strict=True):
        cells(ax, [[r.of(case.name, cell(half, scores, stats, tiles)) for tiles in (1, 4)] for half, scores, stats in lines])
        ax.set_title(f"{case.name}: O {case.path.partition(':')[2]}, p = {case.bits}", fontsize=9.5, loc="left")
        ax.set_xticks((0, 1), ("one key tile", "4 key tiles"), fontsize=9)
    axes[0, 0].set_yticks(range(len(lines)), [f"O {half}, scores {scores}, m l {stats}" for half, scores, stats in lines], fontsize=8.5)
    return figure
