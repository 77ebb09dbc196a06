"""The first picture of a sweep's report: which axis matters most.

Where only the seed varies it shows the seeds.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from roundscope.tools.report.pictures import BAND, DOWN, INK, QUIET, UP, canvas
from roundscope.tools.sweep.report.effects import Shares, center
from roundscope.tools.sweep.report.scales import beyond, named
from roundscope.tools.sweep.report.words import AXES_LABELS, METRIC_LABELS, percent, short
from roundscope.tools.sweep.storage.frames import Axis

BARS, ACROSS = 8, 16  # the most that the picture shows


def opening(found: Shares, axis: Axis, cells: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Figure:
    """Draw what each axis explains of rms, and rms by value of the axis that explains most.

    Lines show what seeds alone might explain. cells: (code of the axis, rms, whether it is usable)
    of every cell.
    """
    names = [e.axis.label for e in found.effects[:BARS]]
    figure, axes = canvas(max(2.9, 1.3 + 0.34 * (len(names) + 2)), 1, 2, width_ratios=[1, 1.15])
    left, right = axes[0]
    _bars(left, found, names)
    _by_value(right, axis, *cells)
    return figure


def _bars(ax: Axes, found: Shares, names: list[str]) -> None:
    """Draw a bar for each axis, for what they explain in combination and for the seeds.

    The scale is logarithmic if all bars but one are short.
    """
    effects = found.effects[: len(names)]
    bars = [
        (short(n, 26), e.share, UP if e.stands_out else QUIET)
        for n, e in zip(names, effects, strict=True)
    ]
    if found.crossed and len(found.effects) > 1:
        rest = 1.0 - sum(e.share for e in found.effects) - np.nan_to_num(found.seeds)
        bars.append(("combinations", max(0.0, rest), QUIET))
    if np.isfinite(found.seeds):
        bars.append(("seeds", found.seeds, QUIET))
    y, share = np.arange(len(bars))[::-1], 100 * np.array([bar[1] for bar in bars])
    wide = _share_scale(ax, share)
    ax.barh(y, share, color=[bar[2] for bar in bars], height=0.55)
    for place, x in zip(y, share, strict=True):
        ax.text(
            max(x, ax.get_xlim()[0]) * 1.15 if wide else x + 2.0,
            place,
            f" {percent(x / 100)}",
            va="center",
            fontsize=9,
            color=INK,
        )
    limits = np.array([min(100 * e.limit, 100.0) for e in effects])
    ax.vlines(limits, y[: limits.size] - 0.4, y[: limits.size] + 0.4, color=DOWN, lw=1.8)
    ax.set_yticks(y, [bar[0] for bar in bars])
    ax.set_xlabel("share of the variance of log rms, in %")


def _share_scale(ax: Axes, share: np.ndarray) -> bool:
    """Set the scale of shares in %; return whether it is logarithmic."""
    above = share[share > 1e-7]
    if share.size < 2 or np.sort(share)[-2] > 3.0 or above.size < 2:
        ax.set_xlim(0, 122)
        ax.set_xticks([0, 25, 50, 75, 100])
        return False
    ax.set_xscale("log")
    low = 10 ** np.floor(np.log10(above.min()) - 0.3)
    ax.set_xlim(low, 100 * (100 / low) ** 0.28)
    ax.set_xticks([t for t in (1e-6, 1e-4, 1e-2, 1, 100) if t >= low])
    ax.get_xaxis().set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.get_xaxis().set_minor_locator(NullLocator())
    return True


def _by_value(ax: Axes, axis: Axis, code: np.ndarray, rms: np.ndarray, usable: np.ndarray) -> None:
    """Draw every cell's rms by the axis' value, slightly apart, and the geometric mean."""
    codes = np.unique(code[usable | np.isinf(rms)])[:ACROSS]
    ax.set_yscale("log")
    for place, c in enumerate(codes):
        y = rms[usable & (code == c)]
        if np.isinf(rms[code == c]).any():
            beyond(ax, [place])
        if not y.size:
            continue
        # the dots are spread evenly, and the same way in every run
        aside = 0.5 * ((np.arange(y.size) * 0.618034) % 1.0 - 0.5)
        ax.plot(place + aside, y, ".", color=DOWN, ms=4, alpha=min(0.6, 40 / y.size + 0.1), mew=0)
        ax.plot([place - 0.32, place + 0.32], [10 ** np.log10(y).mean()] * 2, color=INK, lw=1.8)
    names = [short(axis.word(int(c)), 18) for c in codes]
    tilt = max(map(len, names)) * len(names) > 40
    named(ax, names, tilt)
    ax.set_xlabel(AXES_LABELS.get(axis.label, axis.label))
    ax.set_ylabel(METRIC_LABELS["rms"])


def seeds(values: dict[str, np.ndarray]) -> Figure:
    """Draw metrics of one condition: each seed a dot, the mean a line, its interval a band."""
    figure, axes = canvas(2.6, 1, len(values))
    for ax, (metric, y) in zip(axes[0], values.items(), strict=True):
        mean, low, high = center(metric, y)
        ax.axhspan(low, high, color=BAND, lw=0)
        ax.axhline(mean, color=INK, lw=1.4)
        ax.plot(np.arange(y.size), y, "o", color=DOWN, ms=5, alpha=0.7, mew=0)
        ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        ax.set_ylabel(METRIC_LABELS[metric])
        ax.set_xlabel("seed, in ascending order")
        ax.set_xticks(range(0, y.size, -(-y.size // 8)))
    return figure
