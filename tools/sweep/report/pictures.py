"""The pictures of a sweep's report with their captions.

Each caption asks a question and answers it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from roundscope.attention.sites import Site
from roundscope.tools.report.pictures import DOWN, INK, QUIET, canvas
from roundscope.tools.sweep.report import captions, plots
from roundscope.tools.sweep.report.effects import (
    LOG,
    Shares,
    joint_share,
    mean_interval,
    shares,
    size,
    size_words,
)
from roundscope.tools.sweep.report.plots import named, symmetric, symmetric_ticks
from roundscope.tools.sweep.report.slices import LINES, Slice, chosen, slice_of
from roundscope.tools.sweep.report.words import (
    AXES_LABELS,
    METRIC_LABELS,
    number,
    short,
    with_interval,
)
from roundscope.tools.sweep.storage.frames import Axis, Frame, sites_of

Picture = tuple[str, Any, str, Any]  # title, figure, caption, what draws it for a narrow screen
# axes that come first, in this order; the others are ordered by their effect
FIRST = ("T", "S", "block_q", "block_k", "format")
MOST = 8  # pictures of deviation against an axis
DEVIATION = ("rms", "max_abs", "rel_rms")
SIGNED = ("gain", "mean_ulps", "mean_abs")
SOFTMAX = ("several_ones", "rescales")
BACKWARD = ("delta_bias", "dq_rel_rms", "dk_rel_rms", "dv_rel_rms")


def opening(frame: Frame, found: Shares) -> Picture | None:
    """Return the picture of the axis that matters most, or of seeds alone; None for one cell."""
    if frame.axes and found.cells and found.effects[0].share > 0.0:
        first, metric = found.effects[0].axis, size(frame)
        rms = frame.metric(metric)
        usable = np.isfinite(rms) & (rms > 0)
        cells = frame.code(first), rms, usable
        title = "Share of each axis, and the first of them"
        if found.is_of_one:
            title = f"The {size_words(metric)} of every cell by {first.label}"
        return _drawn(
            title, captions.opening(frame, found), plots.opening, found, first, cells, metric
        )
    last = "delta_bias" if np.isfinite(frame.metric("delta_bias")).any() else "mean_ulps"
    values = {
        name: frame.metric(name)[np.argsort(frame.seeds())] for name in ("rms", "max_abs", last)
    }
    if frame.axes or len(frame.rows) < 2 or not np.isfinite(values["rms"]).any():
        return None
    return _drawn("How much do seeds differ?", captions.seeds(frame), plots.seeds, values)


def _drawn(title: str, caption: str, draw: Callable[..., Figure], *of: Any) -> Picture:
    """Return a picture of what a function draws, for wide screens and for narrow ones."""
    return title, draw(*of), caption, partial(draw, *of, narrow=True)


def pictures(frame: Frame, found: Shares) -> Iterator[Picture]:
    """Yield all further pictures for which this sweep has the numbers."""
    if not frame.rows:
        return
    by_name = {axis.name: axis for axis in frame.axes}
    order = [by_name[n] for n in FIRST if n in by_name]
    order += [e.axis for e in found.effects if e.axis not in order]
    order = [axis for axis in order if captions.comparable(frame, slice_of(frame, axis))]
    for axis in order[:MOST]:
        cut = slice_of(frame, axis)
        caption = captions.against(frame, cut)
        if axis is order[:MOST][-1] and len(order) > MOST:
            caption += f" {len(order) - MOST} more axes have no picture."
        yield _drawn(
            f"Deviation against {axis.label}", caption, plots.against, frame, cut, DEVIATION
        )
    yield from _pair(frame, found)
    yield from _sites(frame, found)
    if frame.axes:
        yield from _others(frame)


def _others(frame: Frame) -> Iterator[Picture]:
    """Yield signed errors, softmax events and gradients against the axis that explains most."""

    def drawn(
        title: str,
        metric: str,
        metrics: tuple[str, ...],
        caption: Callable[[Frame, Slice], str],
        flat: bool = False,
    ) -> Picture:
        cut = slice_of(frame, shares(frame, metric).effects[0].axis, metric, flat=flat)
        return _drawn(title, caption(frame, cut), plots.against, frame, cut, metrics)

    if np.isfinite(frame.metric("mean_ulps")).any():
        yield drawn("Gain and signed mean beside magnitude", "mean_abs", SIGNED, captions.gain)
    if occurring := [m for m in SOFTMAX if (np.nan_to_num(frame.metric(m)) > 0).any()]:
        title = "Rows with several P = 1, and rescales"
        yield drawn(title, occurring[0], SOFTMAX, captions.softmax)
    if np.isfinite(frame.metric("delta_bias")).any():
        title, told = (
            "Backward: bias of delta, and gradients",
            partial(captions.signed, metric="delta_bias"),
        )
        yield drawn(title, "dq_rel_rms", BACKWARD, told, flat=True)


def _pair(frame: Frame, found: Shares) -> Iterator[Picture]:
    """Yield the picture of two axes together: tile and format if both vary, else the strongest."""
    tile = frame.axis("block_k") or frame.axis("block_q")
    a, b = frame.axis("format"), tile
    if (a is None or b is None) and len(found.effects) > 1:
        a, b = found.effects[0].axis, found.effects[1].axis
    if a is None or b is None or a == b or not np.isfinite(frame.metric("rms")).any():
        return
    cut = slice_of(frame, b, "rms", lines=a, flat=True)
    rows, columns = [c for c in cut.of(a) if c is not None], [c for c in cut.of(b) if c is not None]
    values, (of_a, of_b) = {}, (frame.code(a), frame.code(b))
    for name in ("rms", "ratio_max"):
        y = frame.metric(name)
        cells = [
            [mean_interval(y[cut.cells & (of_a == i) & (of_b == j)]) for j in columns] for i in rows
        ]
        means = np.array([[mean for mean, _ in row] for row in cells])
        if not np.isnan(means).all():
            texts = [[with_interval(*x).replace(" ± ", "\n± ") for x in row] for row in cells]
            values[name] = means, texts
    labels = AXES_LABELS.get(a.label, a.label), AXES_LABELS.get(b.label, b.label)
    yield _drawn(
        f"{a.label} and {b.label} together",
        captions.pair(frame, cut, joint_share(frame, "rms", a, b)),
        pair,
        [a.word(c) for c in rows],
        [b.word(c) for c in columns],
        values,
        labels,
    )


def _sites(frame: Frame, found: Shares) -> Iterator[Picture]:
    """Yield errors by site and format, or by site and the strongest axis; bars if none varies."""
    axis = (
        frame.axis("format")
        or frame.axis("preset")
        or (found.effects[0].axis if found.effects else None)
    )
    cut = None if axis is None else slice_of(frame, axis, flat=True)
    cells, codes = np.ones(len(frame.rows), bool), [-1]
    if cut is not None and axis is not None:
        cells = cut.cells
        if cut.lines is not None:
            cells = cells & (frame.code(cut.lines) == _largest(frame, cut.lines, cells))
        codes = chosen(frame, axis, cells, LINES)
    members = [
        np.flatnonzero(cells if axis is None else cells & (frame.code(axis) == c)) for c in codes
    ]
    rms, bias = _site_numbers(frame, members)
    names = [s for s in Site if any(np.nanmax(x, initial=0.0) > 0 for x in rms[s])]
    if not names:
        return
    mean = np.array([[mean_interval(x)[0] for x in rms[s]] for s in names])
    signed = np.array([[mean_interval(x) for x in bias[s]] for s in names])
    quiet = [s for s in Site if s not in names and any(x.size for x in rms[s])]
    if axis is None or cut is None:
        caption = captions.sites(frame, None, cells, names, mean, signed, [], quiet)
        yield _drawn(
            "Errors by event", caption, site_bars, list(names), mean[:, 0], *signed[:, 0].T
        )
        return
    words = [axis.word(c) for c in codes]
    across = AXES_LABELS.get(axis.label, axis.label)
    caption = captions.sites(frame, cut, cells, names, mean, signed, words, quiet)
    drawn = list(names), words, mean, signed[..., 0], signed[..., 1], across
    yield _drawn(f"Errors by event and {axis.label}", caption, sites, *drawn)


def _largest(frame: Frame, axis: Axis, cells: np.ndarray) -> int:
    """Return the value of an axis that has the most conditions, and of those the largest rms."""
    y, code = frame.metric("rms"), frame.code(axis)
    usable = cells & np.isfinite(y)
    there = np.unique(code[usable if usable.any() else cells])
    size = {
        int(c): (
            np.unique(frame.condition[cells & (code == c)]).size,
            float(np.nan_to_num(y[usable & (code == c)]).sum()),
        )
        for c in there
    }
    return max(size, key=lambda c: size[c])


def _site_numbers(
    frame: Frame, members: list[np.ndarray]
) -> tuple[dict[Site, list[np.ndarray]], dict[Site, list[np.ndarray]]]:
    """Return (rms errors, mean errors) by site: the numbers of the cells of each group."""
    keys, names = frame.rows.column("key"), ("rms_error", "mean_error")
    found = [sites_of(frame.path, list(keys[group]), names) for group in members]
    rms, bias = (
        {s: [of[name].get(s, np.empty(0)) for of in found] for s in Site} for name in names
    )
    return rms, bias


def sites(
    names: list[str],
    columns: list[str],
    rms: np.ndarray,
    bias: np.ndarray,
    half: np.ndarray,
    across: str,
    *,
    narrow: bool = False,
) -> Figure:
    """Draw the rms error and the mean signed error by site (rows) and value of an axis (columns).

    Errors are in value. half: half of the interval of bias over seeds; a number is written where
    the interval leaves out 0, or where half is NaN (one seed).
    """
    tilt = max(map(len, columns)) * len(columns) > 40
    figure, axes = canvas(1.5 + 0.22 * len(names) + 0.4 * tilt, 1, 2, sharey=True, narrow=narrow)
    left, right = axes[0]
    size = rms[np.isfinite(rms) & (rms > 0)]
    _map(
        left,
        np.where(rms > 0, rms, np.nan),
        "viridis",
        LogNorm(*_ends(size)),
        [[_brief(x) for x in row] for row in rms],
    )
    sure = np.isfinite(bias) & (bias != 0.0) & ~(np.abs(bias) <= half)
    text = [
        [_brief(b, sign=True) if s else "" for b, s in zip(*row, strict=True)]
        for row in zip(bias, sure, strict=True)
    ]
    size = np.abs(bias[np.isfinite(bias) & (bias != 0.0)])
    size = size if size.size else np.ones(1)
    norm = SymLogNorm(vmin=-size.max(), vmax=size.max(), **symmetric(size))
    _map(right, np.where(rms > 0, bias, np.nan), "RdBu_r", norm, text, faint=~sure)
    for ax, title in ((left, "rms error in value"), (right, "mean signed error in value")):
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.set_xlabel(across)
        named(ax, [short(c, 18) for c in columns], tilt)
        ax.set_yticks(range(len(names)), names, fontfamily="monospace")
    return figure


def site_bars(
    names: list[str],
    rms: np.ndarray,
    bias: np.ndarray,
    half: np.ndarray,
    *,
    narrow: bool = False,
) -> Figure:
    """Draw rms and bias of each site for a single condition, with intervals over seeds as bars."""
    figure, axes = canvas(1.1 + 0.21 * len(names), 1, 2, sharey=True, narrow=narrow)
    left, right = axes[0]
    y = np.arange(len(names))[::-1]
    left.barh(y, rms, color=QUIET, height=0.6)
    left.set_xscale("log")
    left.set_xlabel("rms error in value")
    right.errorbar(
        bias, y, xerr=np.nan_to_num(half), fmt="o", color=DOWN, ms=4, capsize=2.5, lw=1.2
    )
    size = np.abs(bias[bias != 0.0])
    if size.size and size.max() > 30 * size.min():
        right.set_xscale("symlog", **symmetric(size))
        right.xaxis.set_major_locator(symmetric_ticks(size, most=2))
    right.axvline(0.0, color=INK, lw=0.7)
    right.set_xlabel("mean signed error in value")
    for ax in (left, right):
        ax.set_yticks(y, names, fontfamily="monospace")
    return figure


def pair(
    rows: list[str],
    columns: list[str],
    values: dict[str, tuple[np.ndarray, list[list[str]]]],
    labels: tuple[str, str],
    *,
    narrow: bool = False,
) -> Figure:
    """Draw metrics by two axes, one map each; values: metric -> (numbers, text of each cell)."""
    tilt = max(map(len, columns)) * len(columns) > 40
    height = 1.7 + 0.36 * len(rows) + 0.4 * tilt
    figure, axes = canvas(height, 1, len(values), sharey=True, narrow=narrow)
    for ax, (metric, (x, text)) in zip(axes[0], values.items(), strict=True):
        finite = x[np.isfinite(x) & ((x > 0) | (metric not in LOG))]
        wide = finite.size and metric in LOG and finite.max() > 10 * finite.min()
        ends = _ends(finite)
        _map(
            ax,
            np.where(np.isinf(x), np.nan, x),
            "viridis",
            LogNorm(*ends) if wide else Normalize(*ends),
            text,
        )
        ax.set_title(METRIC_LABELS[metric], fontsize=9.5, loc="left")
        ax.set_xlabel(labels[1])
        named(ax, [short(c, 18) for c in columns], tilt)
    axes[0, 0].set_yticks(range(len(rows)), [short(r, 26) for r in rows])
    axes[0, 0].set_ylabel(labels[0])
    return figure


def _map(
    ax: Axes,
    x: np.ndarray,
    colors: str,
    norm: Any,
    text: list[list[str]],
    faint: np.ndarray | None = None,
) -> None:
    """Draw a map with color bar and legible text; no number is gray, `faint` cells are pale."""
    ax.set_facecolor("#e6e8eb")
    if faint is not None:
        # white, so that what is drawn over it can be pale
        ax.imshow(np.where(np.isfinite(x), 1.0, np.nan), cmap="gray", vmin=0, vmax=1, aspect="auto")
    ax.imshow(
        x,
        cmap=colors,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        alpha=None if faint is None else 1 - 0.75 * faint,
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    bar = ax.figure.colorbar(ScalarMappable(norm, colors), ax=ax, pad=0.015, aspect=30)
    bar.ax.tick_params(labelsize=8)
    if isinstance(norm, SymLogNorm) and (x[np.isfinite(x)] != 0.0).any():
        bar.ax.yaxis.set_major_locator(symmetric_ticks(np.abs(x[np.isfinite(x) & (x != 0.0)])))
        bar.ax.yaxis.set_minor_locator(NullLocator())
    size = 8.0 if x.shape[1] <= 5 else 7.0
    for (i, j), value in np.ndenumerate(x):
        shade = colormaps[colors](norm(value)) if np.isfinite(value) else (1, 1, 1, 1)
        dark = 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2] < 0.5
        ax.text(
            j,
            i,
            text[i][j],
            ha="center",
            va="center",
            fontsize=size,
            color="white" if dark else INK,
        )


def _ends(x: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest number, moved apart if they are equal."""
    low, high = (float(x.min()), float(x.max())) if x.size else (0.5, 1.0)
    return (low, high) if high > low else (0.9 * low, 1.1 * high or 1.0)


def _brief(x: float, sign: bool = False) -> str:
    """Return a number with one digit: 3e-5."""
    return "" if not np.isfinite(x) else f"{'+' if sign and x > 0 else ''}{number(x, 1)}"
