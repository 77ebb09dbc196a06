"""Heat maps of a sweep: errors by site, and a metric by two axes."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from roundscope.tools.report.pictures import DOWN, INK, QUIET, canvas
from roundscope.tools.sweep.report.effects import LOG
from roundscope.tools.sweep.report.plots import named, symmetric, symmetric_ticks
from roundscope.tools.sweep.report.words import METRIC_LABELS, number, short


def sites(
    names: list[str],
    columns: list[str],
    rms: np.ndarray,
    bias: np.ndarray,
    half: np.ndarray,
    across: str,
) -> Figure:
    """Draw the rms error and the mean signed error by site (rows) and value of an axis (columns).

    Errors are in value. half: half of the interval of bias over seeds; a number is written where
    the interval leaves out 0, or where half is NaN (one seed).
    """
    tilt = max(map(len, columns)) * len(columns) > 40
    figure, axes = canvas(1.5 + 0.22 * len(names) + 0.4 * tilt, 1, 2, sharey=True)
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
    left.set_yticks(range(len(names)), names, fontfamily="monospace")
    return figure


def site_bars(names: list[str], rms: np.ndarray, bias: np.ndarray, half: np.ndarray) -> Figure:
    """Draw rms and bias of each site for a single condition, with intervals over seeds as bars."""
    figure, axes = canvas(1.1 + 0.21 * len(names), 1, 2, sharey=True)
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
    left.set_yticks(y, names, fontfamily="monospace")
    return figure


def pair(
    rows: list[str],
    columns: list[str],
    values: dict[str, tuple[np.ndarray, list[list[str]]]],
    labels: tuple[str, str],
) -> Figure:
    """Draw metrics by two axes, one map each; values: metric -> (numbers, text of each cell)."""
    tilt = max(map(len, columns)) * len(columns) > 40
    figure, axes = canvas(1.7 + 0.36 * len(rows) + 0.4 * tilt, 1, len(values), sharey=True)
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
    """Draw a map with its color bar, with text that is legible on each color.

    Cells without a number are gray, those of `faint` pale.
    """
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
