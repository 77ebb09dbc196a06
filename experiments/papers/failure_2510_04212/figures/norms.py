"""The picture of ||W_Q|| along the runs."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.experiments.framework.figures.series import CALM, INK, LETHAL, QUIET, canvas
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import FAILS, FP32
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import Trial
from roundscope.experiments.papers.failure_2510_04212.results import Results
from roundscope.tools.results.run import Run


def norms(r: Results) -> Figure:
    """Draw the largest ||W_Q|| along the runs of each case: itself, its repair, and FP32."""
    failing = [case for case in r.scale.cases if r.of(case.name, FAILS)]
    figure, axes = canvas(2.6, 1, len(failing), sharey=True)
    styles = {
        FAILS: ("the case", LETHAL),
        "centred": ("centred delta", CALM),
        FP32: ("FP32", QUIET),
    }
    for ax, case in zip(axes[0], failing, strict=True):
        for row, (_, colour) in reversed(styles.items()):
            for run in r.of(case.name, row):
                _curve(ax, run, colour)
        ax.set_title(case.name, fontsize=10, loc="left")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("largest ||W_Q|| of a head")
    _legend(figure, list(styles.values()))
    return figure


def _curve(ax: Axes, run: Run[Trial], colour: str) -> None:
    last = run.steps if run.diverged is None else run.diverged + 25
    seen = np.array(
        [(step, norm) for step, _, norm in run.curve if math.isfinite(norm) and 0 < step <= last]
    )
    ax.plot(seen[:, 0], seen[:, 1], color=colour, lw=1.0, alpha=0.8)
    if run.diverged is not None:
        ax.plot(
            run.diverged, np.interp(run.diverged, seen[:, 0], seen[:, 1]), "x", color=colour, ms=5
        )


def _legend(figure: Figure, styles: Sequence[tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, lw=1.5, label=words) for words, colour in styles]
    lines.append(Line2D([], [], color=INK, marker="x", lw=0, ms=5, label="diverged"))
    figure.legend(
        handles=lines,
        loc="outside upper center",
        ncols=len(lines),
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
