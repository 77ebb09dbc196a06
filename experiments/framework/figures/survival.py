"""How times to divergence are drawn: seeds as dots, medians, arrows where runs did not diverge."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.experiments.framework.counts import Time, time_of
from roundscope.tools.results.run import Run


def decades(ax: Axes) -> None:
    """Put numbers at 1, 2 and 5 of every decade of a logarithmic vertical axis."""
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def survival(ax: Axes, style: tuple[str, str], series: Mapping[float, Sequence[Run[Any]]]) -> None:
    """Draw steps to divergence at some places of the horizontal axis, in one color and marker."""
    colour, marker = style
    times = {x: time_of(runs) for x, runs in series.items()}
    for (x, time), runs in zip(times.items(), series.values(), strict=True):
        _seeds(ax, x, time, runs, colour)
    ax.plot(list(times), [_middle(t) for t in times.values()], color=colour, lw=1.3, alpha=0.8)
    for x, time in times.items():
        face = colour if math.isfinite(time.middle) else "white"
        ax.plot(x, _middle(time), marker, color=colour, ms=5, mfc=face)


def _seeds(ax: Axes, x: float, time: Time, runs: Sequence[Run[Any]], colour: str) -> None:
    died = [run.diverged for run in runs if run.diverged is not None]
    ax.plot([x] * len(died), died, ".", color=colour, ms=7, alpha=0.55, mew=0)
    ends = [min(time.low, time.steps), min(time.high, time.steps)]
    ax.plot([x, x], ends, "-", color=colour, lw=1.0)
    if time.diverged < time.runs:
        arrow = {"arrowstyle": "->", "color": colour, "lw": 1.3}
        ax.annotate("", (x, time.steps * 1.22), (x, time.steps), arrowprops=arrow)
    if 0 < time.diverged < time.runs:
        place, left = (x, time.steps * 1.26), str(time.runs - time.diverged)
        ax.annotate(left, place, ha="center", va="bottom", fontsize=7, color=colour)


def _middle(time: Time) -> float:
    return min(time.middle, float(time.steps))
