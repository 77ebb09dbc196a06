"""The scales and ticks of a sweep's pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from roundscope.tools.report.pictures import BAND, INK, UP
from roundscope.tools.sweep.report.effects import LOG
from roundscope.tools.sweep.report.slices import Slice
from roundscope.tools.sweep.report.words import short


def across(ax: Axes, cut: Slice) -> None:
    """Set the scale across: logarithmic for numbers, each with a tick, and ranks for words."""
    codes = cut.shown[cut.across.name]
    if cut.across.numeric:
        values = [float(cut.across.values[c]) for c in codes]
        if min(values) > 0:
            ax.set_xscale("log")
        keep = values if len(values) <= 7 else values[:: -(-len(values) // 7)]
        ax.set_xticks(keep, [f"{v:g}" for v in keep])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
        return
    names = [short(cut.across.word(c), 18) for c in codes]
    tilt = max(map(len, names)) * len(names) > 24
    named(ax, names, tilt)
    ax.set_xlim(-0.6, len(names) - 0.4)
    for edge in range(len(names) - 1):
        ax.axvline(edge + 0.5, color=BAND, lw=0.7)


def upward(ax: Axes, metric: str, y: np.ndarray) -> None:
    """Set the vertical scale of a metric, for the values y.

    It is logarithmic for magnitudes; for signed numbers of many sizes it is linear about zero and
    logarithmic far from it.
    """
    finite = y[np.isfinite(y)]
    size = np.abs(finite[finite != 0.0])
    if metric in LOG:
        if size.size:
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(LogLocator(numticks=7))
            if size.max() > 30 * size.min():
                ax.yaxis.set_minor_formatter(NullFormatter())
        return
    if (finite < 0).any():
        ax.axhline(0.0, color=INK, lw=0.7)
        if size.max() > 1e3 * np.median(size):
            ax.set_yscale("symlog", **symmetric(size))
            ax.yaxis.set_major_locator(symmetric_ticks(size))
            return
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def symmetric(size: np.ndarray) -> dict[str, Any]:
    """Return the arguments of a scale about zero for numbers of these sizes.

    It is linear below a threshold and logarithmic beyond it, over four decades at most.
    """
    return {
        "linthresh": max(float(np.quantile(size, 0.25)), 1e-4 * float(size.max())),
        "linscale": 0.7,
    }


def symmetric_ticks(size: np.ndarray, most: int = 3) -> FixedLocator:
    """Return ticks at zero and at a few powers of ten on either side of it that stand apart."""
    low, high = symmetric(size)["linthresh"], float(size.max())
    powers = list(range(int(np.ceil(np.log10(4 * low))), int(np.floor(np.log10(high))) + 1)) or [
        int(np.floor(np.log10(high)))
    ]
    ticks = [10.0**power for power in powers[:: -(-len(powers) // most)]]
    return FixedLocator([*(-t for t in ticks), 0.0, *ticks])


def share(axes: Any, columns: bool) -> None:
    """Set one scale for all panels of a metric, so that rows can be compared."""
    for column in axes.T if columns else ():
        low, high = zip(*(ax.get_ylim() for ax in column), strict=True)
        for ax in column:
            ax.set_ylim(min(low), max(high))


def beyond(ax: Axes, places: Sequence[float]) -> None:
    """Mark places at which a number is infinite by a triangle at the upper edge."""
    if len(places):
        up = ax.get_xaxis_transform()
        ax.plot(places, [0.97] * len(places), "^", color=UP, ms=6, mew=0, transform=up, zorder=5)


def named(ax: Axes, names: list[str], tilt: bool) -> None:
    """Write names across at 0, 1, 2 and so on, slanted where they would touch."""
    ax.set_xticks(
        range(len(names)),
        names,
        rotation=35 if tilt else 0,
        ha="right" if tilt else "center",
        rotation_mode="anchor",
    )
