"""The pictures of a sweep, as matplotlib Figures."""

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.tools.report.pictures import COLOURS, MARKERS, canvas
from roundscope.tools.sweep.measuring.metrics import METRICS
from roundscope.tools.sweep.report import scales
from roundscope.tools.sweep.report.effects import LOG, center
from roundscope.tools.sweep.report.slices import Slice
from roundscope.tools.sweep.report.words import AXES_LABELS, METRIC_LABELS, short
from roundscope.tools.sweep.storage.frames import Frame


def against(frame: Frame, cut: Slice, metrics: tuple[str, ...]) -> Figure:
    """Draw metrics along one axis: a column per metric, a row per value of the rows' axis.

    Seeds are faint dots.
    """
    rows, wrap = cut.of(cut.rows), 2 if len(metrics) == 4 else len(metrics)
    deep = len(rows) if wrap == len(metrics) else 2
    wordy = (
        max(len(short(cut.across.word(int(c or 0)), 18)) for c in cut.of(cut.across)) > 6
        and not cut.across.numeric
    )
    figure, axes = canvas(
        0.9 + (2.35 if deep > 1 else 2.7) * deep + 0.4 * wordy, deep, wrap, sharex=True
    )
    for i, row in enumerate(rows if wrap == len(metrics) else rows[:1]):
        for j, metric in enumerate(metrics):
            ax = axes[i, j] if wrap == len(metrics) else axes.flat[j]
            _lines(ax, frame, cut, metric, row)
            ax.set_ylabel(METRIC_LABELS.get(metric, metric))
            if cut.rows is not None and j == 0 and row is not None:
                ax.set_title(
                    short(f"{cut.rows.label} = {cut.rows.word(row)}", 44), fontsize=9.5, loc="left"
                )
    scales.share(axes, columns=wrap == len(metrics))
    for ax in axes[-1]:
        ax.set_xlabel(AXES_LABELS.get(cut.across.label, cut.across.label))
    _legend(figure, cut)
    return figure


def _lines(ax: Axes, frame: Frame, cut: Slice, metric: str, row: int | None) -> None:
    """Draw one panel: a line for each value of the lines' axis."""
    y, mask = frame.metric(metric), cut.cells.copy()
    if cut.rows is not None and row is not None:
        mask &= frame.code(cut.rows) == row
    scales.upward(ax, metric, y[mask])
    scales.across(ax, cut)
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
    """Draw seeds as dots and their mean as a line.

    The interval of the mean is a band where numbers are across, and bars where words are.
    """
    code, color = frame.code(cut.across), _color(cut, k, of)
    _infinite(ax, frame, cut, mask & np.isinf(y), k, of)
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


def _infinite(ax: Axes, frame: Frame, cut: Slice, cells: np.ndarray, k: int, of: int) -> None:
    """Mark cells whose number is infinite at the upper edge."""
    codes = [int(c) for c in np.unique(frame.code(cut.across)[cells])]
    places = [_place(cut, c, k, of) for c in codes if c in cut.shown[cut.across.name]]
    scales.beyond(ax, places)


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


def _legend(figure: Figure, cut: Slice) -> None:
    if cut.lines is None:
        return
    from matplotlib.lines import Line2D

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
    columns = max(1, min(len(names), 100 // (max(map(len, names)) + 7)))
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
