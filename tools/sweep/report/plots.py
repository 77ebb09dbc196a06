"""The pictures of a sweep along one axis, as matplotlib Figures, and their scales.

The first one shows which axis matters most, or the seeds where nothing else varies.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from roundscope.tools.report.pictures import BAND, COLOURS, DOWN, INK, MARKERS, QUIET, UP, canvas
from roundscope.tools.sweep.measuring.metrics import METRICS
from roundscope.tools.sweep.report.effects import LOG, Shares, center
from roundscope.tools.sweep.report.slices import Slice
from roundscope.tools.sweep.report.words import AXES_LABELS, METRIC_LABELS, percent, short
from roundscope.tools.sweep.storage.frames import Axis, Frame

BARS, ACROSS = 8, 16  # the most that the first picture shows


def opening(
    found: Shares,
    axis: Axis,
    cells: tuple[np.ndarray, np.ndarray, np.ndarray],
    metric: str,
    *,
    narrow: bool = False,
) -> Figure:
    """Draw what each axis explains of rms, and rms by value of the axis that explains most.

    Lines show what seeds alone might explain. cells: (code of the axis, rms, whether it is usable)
    of every cell;  metric: which rms that is.
    """
    if found.is_of_one:
        figure, axes = canvas(3.3, narrow=narrow)
        _by_value(axes[0, 0], axis, *cells)
        axes[0, 0].set_ylabel(METRIC_LABELS[metric])
        return figure
    names = [e.axis.label for e in found.effects[:BARS]]
    height = max(2.9, 1.3 + 0.34 * (len(names) + 2))
    figure, axes = canvas(height, 1, 2, width_ratios=[1, 1.15], narrow=narrow)
    left, right = axes[0]
    _bars(left, found, names)
    _by_value(right, axis, *cells)
    right.set_ylabel(METRIC_LABELS[metric])
    return figure


def _bars(ax: Axes, found: Shares, names: list[str]) -> None:
    """Draw a bar for each axis, combinations and seeds, logarithmic if all but one are short."""
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
        few = y.size <= 40  # dots above the line, which would hide those that are all but equal
        dot = {"ms": 6, "mew": 0.6, "mec": "white", "zorder": 3} if few else {"ms": 4, "mew": 0}
        ax.plot(place + aside, y, "o" if few else ".", color=DOWN, alpha=_alpha(y.size), **dot)
        ax.plot([place - 0.32, place + 0.32], [10 ** np.log10(y).mean()] * 2, color=INK, lw=1.8)
    names = [short(axis.word(int(c)), 18) for c in codes]
    tilt = max(map(len, names)) * len(names) > 40
    named(ax, names, tilt)
    ax.set_xlabel(AXES_LABELS.get(axis.label, axis.label))


def _alpha(count: int) -> float:
    """Return how opaque each of so many dots is."""
    return 1.0 if count <= 40 else min(0.6, 40 / count + 0.1)


def seeds(values: dict[str, np.ndarray], *, narrow: bool = False) -> Figure:
    """Draw metrics of one condition: each seed a dot, the mean a line, its interval a band."""
    figure, axes = canvas(2.6, 1, len(values), narrow=narrow)
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


def against(frame: Frame, cut: Slice, metrics: tuple[str, ...], *, narrow: bool = False) -> Figure:
    """Draw metrics along one axis: a column each, a row per value of the rows' axis."""
    rows, wrap = cut.of(cut.rows), 2 if len(metrics) == 4 else len(metrics)
    deep = len(rows) if wrap == len(metrics) else 2
    wordy = (
        max(len(short(cut.across.word(int(c or 0)), 18)) for c in cut.of(cut.across)) > 6
        and not cut.across.numeric
    )
    figure, axes = canvas(
        0.9 + (2.35 if deep > 1 else 2.7) * deep + 0.4 * wordy,
        deep,
        wrap,
        sharex=True,
        narrow=narrow,
    )
    for i, row in enumerate(rows if wrap == len(metrics) else rows[:1]):
        for j, metric in enumerate(metrics):
            ax = axes[i, j] if wrap == len(metrics) else axes.flat[j]
            _lines(ax, frame, cut, metric, row)
            ax.set_ylabel(METRIC_LABELS.get(metric, metric))
            if cut.rows is not None and (j == 0 or narrow) and row is not None:
                ax.set_title(
                    short(f"{cut.rows.label} = {cut.rows.word(row)}", 44), fontsize=9.5, loc="left"
                )
    for column in axes.T if wrap == len(metrics) else ():  # so that rows can be compared
        low, high = zip(*(ax.get_ylim() for ax in column), strict=True)
        for ax in column:
            ax.set_ylim(min(low), max(high))
    for ax in axes.flat if narrow else axes[-1]:
        ax.set_xlabel(AXES_LABELS.get(cut.across.label, cut.across.label))
    _legend(figure, cut, 44 if narrow else 100)
    return figure


def _lines(ax: Axes, frame: Frame, cut: Slice, metric: str, row: int | None) -> None:
    """Draw one panel: a line for each value of the lines' axis."""
    y, mask = frame.metric(metric), cut.cells.copy()
    if cut.rows is not None and row is not None:
        mask &= frame.code(cut.rows) == row
    _upward(ax, metric, y[mask])
    _across(ax, cut)
    lines = cut.of(cut.lines)
    for k, line in enumerate(lines):
        chosen = (
            mask if line is None or cut.lines is None else mask & (frame.code(cut.lines) == line)
        )
        _line(ax, frame, cut, metric, y, chosen, k, len(lines))


def _line(
    ax: Axes,
    frame: Frame,
    cut: Slice,
    metric: str,
    y: np.ndarray,
    mask: np.ndarray,
    k: int,
    of: int,
) -> None:
    """Draw seeds as dots and their mean as a line, its interval as a band or, of words, as bars."""
    code, color = frame.code(cut.across), _color(cut, k, of)
    infinite = [int(c) for c in np.unique(code[mask & np.isinf(y)])]
    beyond(ax, [_place(cut, c, k, of) for c in infinite if c in cut.shown[cut.across.name]])
    usable = mask & np.isfinite(y) & ((y > 0) | (metric not in LOG))
    there = [c for c in cut.shown[cut.across.name] if (usable & (code == c)).any()]
    if not there:
        return
    banded, seeds = cut.across.numeric and metric in LOG, usable & np.isin(code, there)
    # beside the bars, which would hide them
    beside = {
        c: float(cut.across.values[c]) if banded else _place(cut, c, k + 0.38, of) for c in there
    }
    places = [beside[int(c)] for c in code[seeds]]
    ax.plot(places, y[seeds], ".", color=color, ms=5.5, alpha=0.45, mew=0)
    if f"{metric}_se" in METRICS:
        ax.errorbar(
            places,
            y[seeds],
            frame.metric(f"{metric}_se")[seeds],
            fmt="none",
            ecolor=color,
            elinewidth=0.8,
            alpha=0.35,
        )
    mean, low, high = np.array([center(metric, y[usable & (code == c)]) for c in there]).T
    x = np.array([float(cut.across.values[c]) if banded else _place(cut, c, k, of) for c in there])
    marker = MARKERS[k % len(MARKERS)]
    if banded:
        ax.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
        ax.plot(x, mean, color=color, marker=marker, ms=4.5, lw=1.4)
    else:
        bars = np.nan_to_num(np.stack([mean - low, high - mean]), nan=0.0)
        ax.errorbar(x, mean, bars, fmt=marker, color=color, ms=5, capsize=2.5, lw=1.2)


def _place(cut: Slice, code: int, k: float, of: int) -> float:
    """Return where mark k of a value of the axis across is drawn: beside its number or its rank."""
    codes, aside = cut.shown[cut.across.name], 0.6 * ((k + 0.5) / of - 0.5)
    if not cut.across.numeric:
        return float(codes.index(code) + aside)
    values = [float(cut.across.values[c]) for c in codes]
    ratio = min((b / a for a, b in pairwise(values) if a > 0), default=2.0)
    return float(float(cut.across.values[code]) * ratio**aside)


def _color(cut: Slice, k: int, of: int) -> Any:
    """Return the color of line k: light to dark for numbers, else one that can be told apart."""
    if cut.lines is not None and cut.lines.numeric and of > 1:
        return colormaps["viridis_r"](0.2 + 0.8 * k / (of - 1))
    return COLOURS[k % len(COLOURS)]


def _legend(figure: Figure, cut: Slice, letters: int) -> None:
    """Name the lines above the panels; letters: as many as fit in one row."""
    if cut.lines is None:
        return
    codes = cut.shown[cut.lines.name]
    names = [short(cut.lines.word(c), 34) for c in codes]
    handles = [
        Line2D(
            [],
            [],
            color=_color(cut, k, len(codes)),
            marker=MARKERS[k % len(MARKERS)],
            ms=5,
            lw=1.4,
            label=name,
        )
        for k, name in enumerate(names)
    ]
    columns = max(1, min(len(names), letters // (max(map(len, names)) + 7)))
    figure.legend(
        handles=handles,
        title=cut.lines.label,
        loc="outside upper left",
        ncols=columns,
        fontsize=9,
        title_fontsize=9.5,
        frameon=False,
        alignment="left",
    )


def _across(ax: Axes, cut: Slice) -> None:
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


def _upward(ax: Axes, metric: str, y: np.ndarray) -> None:
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
    """Return the arguments of a scale about zero, logarithmic over at most four decades."""
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
