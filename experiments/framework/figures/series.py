"""How a series of conditions is drawn: seeds as faint dots, means with their 95 % t intervals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from roundscope.experiments.framework.estimates import Estimate, Values, factor, mean
from roundscope.tools.report.pictures import COLOURS, canvas  # noqa: F401 (read from here too)

LETHAL, CALM = "#d55e00", "#0072b2"  # runs that diverged, and runs that did not
# from none over some to all runs diverged
SHARE = LinearSegmentedColormap.from_list("share", ["#d6e8f5", "#f6e3c5", LETHAL])
GRID = "#e4e7eb"  # lines behind rows


def series(
    ax: Axes,
    x: Sequence[float],
    values: Sequence[Values],
    *,
    label: str,
    color: str,
    marker: str,
    geometric: bool = True,
    line: str = "-",
    hollow: bool = False,
    aside: float = 0.0,
) -> None:
    """Draw one line, moved sideways by `aside`."""
    move = np.asarray(x, dtype=float) + aside
    estimates: list[Estimate] = [factor(v) if geometric else mean(v) for v in values]
    for place, each in zip(move, values, strict=True):
        dots = [v for v in each.values() if np.isfinite(v) and (v > 0 or not geometric)]
        ax.plot([place] * len(dots), dots, ".", color=color, ms=4.5, alpha=0.28, mew=0)
    centre = np.array([e.mean for e in estimates])
    below = [e.mean - e.low for e in estimates]
    if geometric:  # the difference may round to the mean, and the bar would end at 0
        below = [
            min(length, e.mean * (1 - 1e-9)) for length, e in zip(below, estimates, strict=True)
        ]
    ax.errorbar(
        move,
        centre,
        np.nan_to_num(np.array([below, [e.high - e.mean for e in estimates]])),
        linestyle=line,
        color=color,
        marker=marker,
        ms=5,
        lw=1.4,
        capsize=2.5,
        label=label,
        mfc="white" if hollow else color,
    )


def numbers(ax: Axes, ticks: Sequence[float], log: bool = True) -> None:
    """Make the horizontal axis logarithmic, with a tick at each number; with `log` both axes."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    if log:
        upwards(ax)
        ax.yaxis.set_minor_formatter(NullFormatter())


def upwards(ax: Axes) -> None:
    """Make the vertical axis logarithmic, if anything is drawn that such an axis can show."""
    if np.isfinite(ax.dataLim.minposy):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=9))


def legend(figure: Figure, ax: Axes, columns: int, **look: Any) -> None:
    """Put the labels of one axes above the picture, each once; `look` is for `Figure.legend`."""
    found = {label: h for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    usual: dict[str, Any] = {"loc": "outside upper left", "fontsize": 8.5, "frameon": False}
    figure.legend([*found.values()], [*found], ncols=columns, **(usual | look))


def decades(ax: Axes) -> None:
    """Make the vertical axis logarithmic, with numbers at 1, 2 and 5 of every decade."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
