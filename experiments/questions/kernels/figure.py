"""Gains of every kernel on every family, as two matrices: of the output and of dQ."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from roundscope.experiments.questions.kernels.measure import Row
from roundscope.tools.report.pictures import INK, QUIET, canvas

SHORT, LONG = "#d55e00", "#0072b2"
COLOURS = LinearSegmentedColormap.from_list("gain", [SHORT, "#f7e2d0", "#f4f5f6", "#d3e4f1", LONG])
CLEAR = 4.0  # the |z| from which a gain counts as a bias
MOST = 12.0  # the |z| that has the full color


def picture(rows: Sequence[Row]) -> Figure:
    """Draw kernels x families, colored by z."""
    kernels = [
        k
        for k in dict.fromkeys(row.kernel for row in rows)
        if not all(row.failed for row in rows if row.kernel == k)
    ]
    families = list(dict.fromkeys(row.family for row in rows))
    by = {(row.kernel, row.family): row for row in rows}
    figure, axes = canvas(1.3 + 0.3 * len(kernels), 1, 2, sharey=True)
    for ax, result, title in zip(axes[0], ("out", "dq"), ("the output", "dQ"), strict=True):
        for y, kernel in enumerate(kernels):
            for x, family in enumerate(families):
                _cell(ax, x, y, by.get((kernel, family)), result)
        ax.set(xlim=(-0.5, len(families) - 0.5), ylim=(max(len(kernels), 1) - 0.5, -0.5))
        ax.set_xticks(
            range(len(families)), [family.replace(" ", "\n") for family in families], fontsize=7.5
        )
        ax.set_yticks(range(len(kernels)), kernels, fontsize=8.5)
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.set_title(f"gain of {title}, in 1e-5", fontsize=10, loc="left", color=INK)
        for side in ax.spines.values():
            side.set_visible(False)
    return figure


def _cell(ax: Axes, x: int, y: int, row: Row | None, result: str) -> None:
    gain = None if row is None or row.failed else row.gain[result]
    if gain is None or not math.isfinite(gain.mean):
        ax.text(x, y, "-", ha="center", va="center", fontsize=8, color=QUIET)
        return
    share = 0.5 + 0.5 * max(-1.0, min(1.0, gain.z / MOST)) if math.isfinite(gain.z) else 0.5
    ax.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=COLOURS(share), lw=0))
    clear = abs(gain.z) >= CLEAR
    ax.text(
        x,
        y,
        shown(gain.mean),
        ha="center",
        va="center",
        fontsize=7.5,
        color=INK if clear else QUIET,
        weight="bold" if clear else None,
    )


def shown(gain: float) -> str:
    """Return a gain in units of 1e-5, with its sign."""
    x = gain * 1e5
    return f"{x:+.0f}" if abs(x) >= 9.5 else f"{x:+.1f}"
