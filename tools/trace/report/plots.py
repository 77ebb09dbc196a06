"""The report's pictures as matplotlib Figures."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.tools.report.pictures import (
    BAND,
    DOWN,
    INK,
    QUIET,
    UP,
    bars,
    canvas,
    hover,
    texts,
)
from roundscope.tools.trace.analysis.bias import Bias, Event, threshold
from roundscope.tools.trace.analysis.consequences import DeltaDrift
from roundscope.tools.trace.analysis.running_error import Running, tied
from roundscope.tools.trace.focus import CENTRES, Histogram
from roundscope.tools.trace.report.tables import formula
from roundscope.tools.trace.results import z_words
from roundscope.tools.trace.summary import Summary


def _figure(height: float, rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, Any]:
    """Return a figure of the page's width and its axes: one, or an array of them."""
    is_squeezed = more.pop("squeeze", True)
    figure, axes = canvas(height, rows, columns, **more)
    return figure, axes.squeeze()[()] if is_squeezed else axes


def bias(summary: Summary, *, narrow: bool = False) -> Figure:
    """Draw both mean errors of every rounding event, over the bands of random signs."""
    events = summary.rounding[::-1]
    figure, (left, right) = _figure(1.2 + 0.2 * len(events), 1, 2, sharey=True, narrow=narrow)
    _biases(left, summary.limit, [(e, e.signed) for e in events], "up or down")
    _biases(right, summary.limit, [(e, e.away) for e in events], "away from zero")
    names = [f"{e.name}  {e.format.name}" for e in events]
    for ax in (left, right):
        ax.set_yticks(range(len(events)), names, fontfamily="monospace", fontsize=8)
    left.set_ylim(-0.6, len(events) - 0.4)
    figure.supxlabel("mean error in ulps of the event's format", fontsize=9.5)
    return figure


def _biases(ax: Any, limit: float, biases: list[tuple[Event, Bias]], title: str) -> None:
    """Draw the answers to one of the two tests, one for each event."""
    y, means = np.arange(len(biases)), np.array([b.error.mean for _, b in biases])
    band = limit * np.array([b.error.null for _, b in biases])
    colours = [(UP if b.error.mean > 0 else DOWN) if b.is_biased else QUIET for _, b in biases]
    ax.barh(
        y,
        2 * band,
        left=-band,
        height=0.86,
        color=BAND,
        label=f"null band, |z| < {limit:.1f}",
    )
    bars = ax.barh(y, means, height=0.4, color=colours)
    for bar, (e, b) in zip(bars, biases, strict=True):
        told = f"{e.name}, {title}: {b.error.mean:+.2g} ulp, {z_words(b.error.z)}"
        hover(bar, f"{told}; {formula(e.name)}")
    _signed_log(ax.set_xscale, np.concatenate([means, band]))
    ax.axvline(0.0, color=INK, lw=0.8)
    ax.set_title(title, fontsize=9.5, loc="left")
    above: Any = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    ax.legend(**above, fontsize=8, frameon=False)


def budget(b: ErrorBudget, parts: list[Line], *, narrow: bool = False) -> Figure | None:
    """Draw the share of each part in the squared error of each result, a panel for a result.

    Results without an error, or with an infinite one, have no shares; None if all are such.
    """
    names = [n for n, x in b.total.items() if x > 0.0 and np.isfinite(x)]
    if not names or not parts:
        return None
    shown = parts[::-1]
    # a part may make a result infinite alone that other errors keep finite: it has the longest bar
    found = [b.share(line, name) for line in parts for name in names]
    most = 100.0 * max((x for x in found if np.isfinite(x)), default=1.0)
    figure, axes = _figure(
        1.1 + 0.24 * len(shown),
        1,
        len(names),
        sharey=True,
        sharex=True,
        squeeze=False,
        narrow=narrow,
    )
    for ax, name in zip(axes[0], names, strict=True):
        shares = [min(100.0 * b.share(line, name), 1.2 * most) for line in shown]
        bars = ax.barh(range(len(shown)), shares, height=0.7, color=DOWN)
        for bar, line, share in zip(bars, shown, shares, strict=True):
            hover(bar, f"{line.part.name}: {share:.1f} % of {name}; {line.part.formula}")
            if share >= 0.5:
                ax.annotate(
                    f"{share:.0f}",
                    (share, bar.get_y() + bar.get_height() / 2),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=INK,
                )
        ax.set_title(name, fontsize=9.5)
        ax.set_xlim(0.0, 1.2 * most)
        ax.xaxis.set_major_locator(MaxNLocator(3, min_n_ticks=2))
    labels = [f"{x.part.name}  {x.part.how}" if narrow else _named(x) for x in shown]
    for ax in axes[0]:
        ax.set_yticks(range(len(shown)), labels, fontfamily="monospace", fontsize=8)
    figure.supxlabel("share of the squared error of the result, %", fontsize=9.5)
    return figure


def _named(line: Line) -> str:
    """Return the label of a part: its event with the beginning of its formula, and its rounding."""
    part = line.part
    text = re.split(r", | as | of ", part.formula)[0]
    has_formula = len(part.places) == 1 and text and text != part.name
    return f"{part.name}{f' = {text}' if has_formula else ''}  {part.how}"


def _signed_log(set_scale: Callable[..., Any], values: np.ndarray) -> None:
    size = np.abs(values[values != 0.0])
    threshold = float(np.quantile(size, 0.25)) if size.size else 1e-3
    # a power of ten, so that no tick but 0 lies in the linear part, where labels would overlap
    decade = 10.0 ** np.floor(np.log10(max(threshold, 1e-6)))
    set_scale("symlog", linthresh=decade, linscale=0.7)


def along_keys(run: Running, *, narrow: bool = False) -> Figure:
    """Draw P, V and the running error of one (row, feature), as in Fig. 6 of arXiv 2510.04212."""
    b, n, t, i = run.where
    figure, (top, middle, bottom) = _figure(
        6.0, 3, sharex=True, height_ratios=[1, 1, 1.8], narrow=narrow
    )
    keys, ones = np.arange(run.p.size), tied(run)
    for ax in (top, middle, bottom):
        for key in ones:
            ax.axvline(key, color=UP, lw=1.0, alpha=0.45)
    top.vlines(keys, 0.0, run.p, color=DOWN, lw=0.8)
    top.plot(
        ones, run.p[ones], "o", color=UP, ms=4, label=f"P = 1 at {ones.size} of {run.p.size} keys"
    )
    top.set_ylabel(f"P[{t}, :]")
    top.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, fontsize=8, frameon=False
    )
    middle.vlines(keys, 0.0, run.v, color=QUIET, lw=0.8)
    middle.axhline(0.0, color=INK, lw=0.6)
    middle.set_ylabel(f"V[:, {i}]")
    bottom.plot(keys, run.error, drawstyle="steps-post", color=INK, lw=0.9)
    per_sum = run.ulp / np.ldexp(1.0, np.frexp(run.total[-1])[1])
    half = 0.5 * per_sum * np.ldexp(1.0, np.frexp(run.total)[1])
    bottom.fill_between(
        keys,
        -half,
        half,
        color=BAND,
        step="post",
        label=f"half an ulp of the sum, in {run.site}'s format",
    )
    bottom.axhline(0.0, color=INK, lw=0.6)
    bottom.set_ylabel("Err(t), in value")
    bottom.set_xlabel(f"key t   (batch {b}, head {n}, query {t}, feature {i})")
    bottom.legend(loc="upper left", fontsize=8, frameon=False)
    return figure


def along_tokens(drift: DeltaDrift, *, narrow: bool = False) -> Figure:
    """Draw the most biased head's error of delta by token, and its sum over random signs' band."""
    error = drift.error[drift.worst[0], :, drift.worst[1]]
    figure, (top, bottom) = _figure(4.6, 2, sharex=True, height_ratios=[1, 1.5], narrow=narrow)
    tokens, total = np.arange(error.size), np.cumsum(error)
    top.vlines(tokens, 0.0, error, color=np.where(error > 0, UP, DOWN), lw=0.9)
    top.axhline(0.0, color=INK, lw=0.6)
    top.set_ylabel("error of delta")
    band = np.sqrt(np.cumsum(error**2))
    bottom.fill_between(tokens, -1.96 * band, 1.96 * band, color=BAND, label="random signs, 95 %")
    bottom.plot(
        tokens,
        drift.limit * band,
        ":",
        color=QUIET,
        lw=1.0,
        label=f"threshold, |z| = {drift.limit:.1f}",
    )
    bottom.plot(tokens, -drift.limit * band, ":", color=QUIET, lw=1.0)
    bottom.plot(tokens, total, color=INK, lw=1.3, label="running sum")
    bottom.axhline(0.0, color=INK, lw=0.6)
    bottom.set_ylabel("running sum")
    bottom.set_xlabel(f"token   (batch {drift.worst[0]}, head {drift.worst[1]})")
    bottom.legend(loc="upper left", fontsize=8, frameon=False, ncols=1 if narrow else 3)
    return figure


def heat_map(summary: Summary, *, narrow: bool = False) -> tuple[Figure, int, float]:
    """Draw mean errors by event and head; return (figure, cells with |z| beyond a limit, limit)."""
    names, means, z = summary.heads
    limit = threshold(means.size)
    figure, ax = _figure(1.2 + 0.21 * max(len(names), 1), narrow=narrow)
    if means.size:
        image = ax.imshow(
            z,
            cmap="RdBu_r",
            vmin=-2 * limit,
            vmax=2 * limit,
            aspect="auto",
            interpolation="nearest",
        )
        bar = figure.colorbar(image, ax=ax, pad=0.01, extend="both")
        bar.ax.tick_params(labelsize=8)
        bar.set_label("z", fontsize=8)
        for i, j in zip(*np.nonzero(np.abs(z) > limit), strict=True):
            ax.add_patch(Rectangle((j - 0.48, i - 0.46), 0.96, 0.92, fill=False, ec=INK, lw=2.4))
            ax.add_patch(
                Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, ec="white", lw=0.9)
            )
    if means.size and means.shape[1] <= (8 if narrow else 16):
        cells = [
            (
                (j, i),
                f"{1000 * mean:+.1f}" if abs(mean) < 0.1 else f"{1000 * mean:+.0f}",
                "white" if abs(z[i, j]) > 1.3 * limit else INK,
            )
            for (i, j), mean in np.ndenumerate(means)
        ]
        texts(ax, cells, ha="center", va="center", fontsize=6.5)
    batch, _, heads, _ = summary.layer.q.shape
    labels = [
        str(k % heads) if batch == 1 else f"{k // heads}/{k % heads}" for k in range(batch * heads)
    ]
    step = -(-len(labels) // 16) if narrow else max(1, len(labels) // 32)
    ax.set_xticks(range(0, len(labels), step), labels[::step])
    ax.set_yticks(range(len(names)), names, fontfamily="monospace", fontsize=8)
    ax.set_xlabel("head" if batch == 1 else "batch/head")
    return figure, int((np.abs(z) > limit).sum()), limit


def histogram(sites: dict[str, Histogram], *, narrow: bool = False) -> Figure:
    """Draw histograms of the signed errors, in ulps, of the inexact events of each given site."""
    figure, axes = _figure(2.5, 1, len(sites), squeeze=False, narrow=narrow)
    for ax, (name, f) in zip(axes[0], sites.items(), strict=True):
        total = max(f.size, 1)
        inside = np.flatnonzero(f.counts)
        colours = np.where(CENTRES > 0, UP, DOWN)
        bars(ax, CENTRES, f.counts / total, 1 / 40, facecolors=colours, alpha=0.85)
        reach = max(0.55, float(np.abs(CENTRES[inside]).max(initial=0.0)) + 0.05)
        ax.set_xlim(-reach, reach)
        ax.axvline(0.0, color=INK, lw=0.6)
        ax.set_title(name, fontsize=9, fontfamily="monospace")
        ax.set_xticks([-0.5, 0.0, 0.5])
        ax.set_xlabel("ulps")
    for ax in axes[0] if narrow else axes[0][:1]:
        ax.set_ylabel("share of inexact events")
    return figure


def several_ones(summary: Summary, *, narrow: bool = False) -> Figure:
    """Draw the rows with several P = 1 by head, and their mean error away from zero.

    The mean error is compared with that of the other rows. `summary.several` must not be None.
    """
    figure, (left, right) = _figure(2.9, 1, 2, width_ratios=[1.5, 1], narrow=narrow)
    several: Any = summary.several
    counts = several.sum(2).reshape(-1)
    left.bar(np.arange(counts.size), counts, color=DOWN, width=0.7)
    for axis in (left.xaxis, left.yaxis):  # heads and rows are whole numbers
        axis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlabel("head" if several.shape[0] == 1 else "batch * heads + head")
    left.set_ylabel(f"rows of {several.shape[2]} with several P = 1")
    for k, s in enumerate(summary.shares):
        for d, (x, colour) in enumerate(zip(s.away, (UP, QUIET), strict=True)):
            label = ("rows with several P = 1", "other rows")[d] if k == 0 else None
            right.errorbar(
                k + 0.24 * d - 0.12,
                x.mean,
                x.se,
                fmt="o",
                color=colour,
                capsize=3,
                ms=5,
                label=label,
            )
    right.axhline(0.0, color=INK, lw=0.6)
    right.set_xticks(
        range(len(summary.shares)), [s.site for s in summary.shares], fontfamily="monospace"
    )
    right.set_xlim(-0.6, max(len(summary.shares), 1) - 0.4)
    right.set_ylabel("mean error away from zero, ulps")
    right.margins(y=0.35)
    if summary.shares:
        right.legend(loc="upper center", fontsize=8, frameon=False)
    return figure
