"""The picture of a check: how much larger, and how much more biased, a kernel's errors are."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from roundscope.attention.testing.comparison import Comparison, Finding, State
from roundscope.attention.testing.errors import Margins
from roundscope.attention.testing.exact import RESULTS
from roundscope.tools.report.pictures import BAND, INK, QUIET, UP, WIDTH

COLORS = dict(zip(RESULTS, ("#1f2933", "#2166ac", "#4d9221", "#c77c11"), strict=True))
TITLES = {
    "rms": "relative rms error, over the plan's",
    "gain": "gain minus the plan's, in units of the plan's error",
}
CAPTION = (
    "Each dot is the mean over heads of one result on one kind of inputs; the bar is three standard"
    " errors. Left: the kernel's relative rms error over that of the plan. Right: how much longer"
    " (above 0) or shorter (below 0) its result is than the plan's, as a share of the plan's error."
    " Gray: within the margins. A red ring is an alarm."
)


def picture(compared: Comparison, margins: Margins) -> Figure:
    """Draw the rms errors and the gains of every kind of inputs."""
    kinds = list(dict.fromkeys(f.inputs for f in compared.findings))
    size = (WIDTH, 1.1 + 0.42 * len(kinds))
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, statistic in zip(axes, TITLES, strict=True):
        _panel(ax, statistic, compared, kinds, margins)
    axes[0].set_yticks(range(len(kinds)), kinds, fontsize=9)
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    handles = [
        axes[1].plot([], [], "o", ms=6, color=color, label=name)[0]
        for name, color in COLORS.items()
        if name in compared.equal
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    return figure


def _panel(
    ax: Axes, statistic: str, compared: Comparison, kinds: list[str], margins: Margins
) -> None:
    is_ratio = statistic == "rms"
    margin = margins.of(statistic)
    low, high = (1 / math.exp(margin), math.exp(margin)) if is_ratio else (-margin, margin)
    ax.axvspan(low, high, color=BAND, lw=0)
    ax.axvline(1.0 if is_ratio else 0.0, color=QUIET, lw=0.8)
    for f in compared.findings:
        if f.statistic == statistic and (is_ratio or f.direction > 0):
            _dot(ax, f, kinds.index(f.inputs), is_ratio, compared)
    ax.set_title(TITLES[statistic], fontsize=10, loc="left", color=INK)
    if is_ratio:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:.3g}")
        low, high = ax.get_xlim()
        is_narrow = high < 5 * low  # no power of ten may be in sight
        ax.xaxis.set_minor_formatter("{x:.3g}" if is_narrow else NullFormatter())
    else:
        ax.set_xscale("symlog", linthresh=margin)
    ax.tick_params(labelsize=8, colors=INK)
    ax.tick_params(which="minor", labelsize=7)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0, labelsize=9)


def _dot(ax: Axes, f: Finding, row: int, is_ratio: bool, compared: Comparison) -> None:
    mean, half = f.evidence.mean, 3.0 * f.evidence.error
    if not (np.isfinite(mean) and np.isfinite(half)):
        return
    ends = np.array([mean - half, mean, mean + half])
    left, middle, right = np.exp(ends) if is_ratio else ends
    y = row + 0.17 * (RESULTS.index(f.result) - 1.5)
    ax.plot([left, right], [y, y], color=COLORS[f.result], lw=1.2, solid_capstyle="butt")
    ax.plot(middle, y, "o", ms=4, color=COLORS[f.result])
    alarms = (
        g.evidence.state is State.ALARM
        for g in compared.findings
        if (g.inputs, g.result, g.statistic) == (f.inputs, f.result, f.statistic)
    )
    if any(alarms):
        ax.plot(middle, y, "o", ms=9, mfc="none", mec=UP, mew=1.3)
