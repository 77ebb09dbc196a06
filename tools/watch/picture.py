"""The picture of a watched training: the drift of each look, and the row sums of dS by layer."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from roundscope.attention.models.log import Look, over_since
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.watch.command import alarm_of

RED = "#b2182b"
NAMED = 6  # layers that have a line in the legend; more have a scale of colors
LEAST = 1e-12  # a share of 0 is drawn here, for the axis is logarithmic


def draw(looks: Sequence[Look]) -> Figure:
    """Draw the drift of each look, of all layers and of each, and the size of the row sums.

    The share over all looks, which the threshold is for, is a dotted line; a look that is not
    finite is a cross at the top.
    """
    figure, axes = canvas(5.6, rows=2, sharex=True, height_ratios=(3, 2))
    shares, sizes = axes[:, 0]
    layers = sorted({own.layer for look in looks for own in look.layers}, key=lambda x: x.number)
    colors = [colormaps["viridis"](x) for x in np.linspace(0.05, 0.9, max(len(layers), 2))]
    for layer, color in zip(layers, colors, strict=False):
        own = [next((x for x in look.layers if x.layer == layer), None) for look in looks]
        label = f"layer {layer.number}" if len(layers) <= NAMED else None
        _line(shares, looks, [x.now if x else math.nan for x in own], color=color, label=label)
        means = [float(np.mean(x.numbers.row_sums)) if x else math.nan for x in own]
        _line(sizes, looks, means, color=color)
    _line(shares, looks, [look.now for look in looks], color=INK, width=2.4, label="all layers")
    shares.plot(
        [look.step for look in looks], [_drawn(look.share) for look in looks], ":", color=INK,
        linewidth=1.6, label="over all looks",
    )  # fmt: skip
    _lost(shares, looks)
    _threshold(shares, looks)
    shares.set_ylabel("share of the queries' gradient\nthat row sums of dS make")
    sizes.set_ylabel("rms of row sums\nover that of rowsum |dS|")
    sizes.set_xlabel("step")
    for ax in (shares, sizes):
        ax.set_yscale("log")
        ax.grid(axis="y", color=QUIET, alpha=0.25, linewidth=0.6)
    shares.margins(y=0.12)
    shares.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    if len(layers) > NAMED:
        _scale(figure, sizes, layers[0].number, layers[-1].number)
    return figure


def _line(
    ax: Axes,
    looks: Sequence[Look],
    values: Sequence[float],
    *,
    color: object,
    width: float = 1.1,
    label: str | None = None,
) -> None:
    """Draw one series; looks without a number leave a gap, and single ones are dots."""
    drawn = [_drawn(x) for x in values]
    steps = [look.step for look in looks]
    marker = "o" if len(looks) <= 40 else ""
    ax.plot(
        steps, drawn, color=color, linewidth=width, label=label, marker=marker, markersize=width + 2
    )


def _drawn(x: float) -> float:
    return max(x, LEAST) if math.isfinite(x) else math.nan


def _lost(ax: Axes, looks: Sequence[Look]) -> None:
    """Mark the looks of which a number is not finite."""
    if steps := [look.step for look in looks if look.lost]:
        ax.plot(
            steps, [0.97] * len(steps), "x", color=RED, markersize=6, markeredgewidth=1.6,
            transform=ax.get_xaxis_transform(), label=f"NaN or infinite ({len(steps)})",
        )  # fmt: skip


def _threshold(ax: Axes, looks: Sequence[Look]) -> None:
    """Draw the threshold, and the alarm where there is one."""
    limit, alarm = looks[-1].threshold, alarm_of(looks)
    if limit is not None:
        ax.axhline(limit, color=RED, linestyle="--", linewidth=1.2, label=f"threshold {limit:.2g}")
    if alarm is None:
        return
    over = over_since(looks)
    ax.axvspan(alarm.step, looks[-1].step if over is None else over, color=RED, alpha=0.07, lw=0)
    ax.plot(
        [alarm.step], [alarm.share], "o", color=RED, markersize=8, markerfacecolor="white",
        markeredgewidth=2, zorder=5, label=f"alarm, step {alarm.step}\n(layer {alarm.layer.number},"
        f" head {alarm.head})" + ("" if over is None else f"\nover since {over}"),
    )  # fmt: skip


def _scale(figure: Figure, ax: Axes, first: int, last: int) -> None:
    """Draw the scale of the layers' colors."""
    half = (colormaps["viridis"](x) for x in np.linspace(0.05, 0.9, 64))
    colors = ScalarMappable(Normalize(first, last), ListedColormap(list(half)))
    bar = figure.colorbar(colors, cax=ax.inset_axes((1.03, 0.0, 0.02, 1.0)))
    bar.set_label("layer", color=INK, size=9)
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)
