"""Pictures of steps 3 to 5 of a proxy's diagnosis: gradient's error, blocks, repairs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.diagnose.student.errors import GRADIENT
from roundscope.experiments.diagnose.student.run import ALL, REST, SET, Found
from roundscope.tools.diagnose.report.pictures import LIFTED
from roundscope.tools.report.pictures import BAND, DOWN, INK, QUIET, UP, canvas, logarithmic


def errors(found: Found) -> Figure:
    """Draw zeta of every choice of events, and whether its error adds up over steps."""
    own = {n: e for n, e in found.errors.items() if n != GRADIENT and float(e.zeta.max()) > 0.0}
    figure, axes = canvas(1.0 + 0.23 * len(own), 1, 2, sharey=True)
    left, right = axes[0]
    for row, (name, e) in enumerate(own.items()):
        colour = UP if name == SET else INK if name in (ALL, REST) else QUIET
        left.plot(e.zeta, np.full(e.zeta.size, row), "|", color=colour, ms=8, alpha=0.6)
        right.plot([0.0, e.null], [row, row], color=BAND, lw=7, solid_capstyle="butt", zorder=1)
        right.plot(e.a, row, "o", color=colour, ms=6)
    g = found.errors[GRADIENT].a
    right.axvline(g, color=DOWN, lw=0.9, ls=":")
    beside: Any = {"xycoords": ("data", "axes fraction"), "fontsize": 8.5, "va": "bottom"}
    right.annotate(" the gradient", (g, 1.0), color=DOWN, **beside)
    logarithmic(left.xaxis)
    left.set_xlabel("zeta: |epsilon| / |g|, a tick for each step")
    right.set_xlabel("A: how the error adds up over steps; gray: sign flips, 95 %")
    right.set_xlim(left=0.0)
    _rows(axes[0], list(own))
    return figure


def origin(found: Found) -> Figure:
    """Draw what the format does to the blocks of every event, beside normal numbers."""
    panels = {
        "shrink": "magnitude lost",
        "clipped": "clipped",
        "underflow": "became 0",
        "distinct": "different elements in a block",
    }
    figure, axes = canvas(1.0 + 0.27 * len(found.origin), 1, len(panels), sharey=True)
    for ax, (name, title) in zip(axes[0], panels.items(), strict=True):
        for row, b in enumerate(found.origin):
            scale = -100.0 if name == "shrink" else 1.0 if name == "distinct" else 100.0
            ax.plot(scale * b.normal_shares[name], row, "|", color=INK, ms=11, mew=1.6)
            ax.plot(scale * b.shares[name], row, "o", color=UP if b.marked else QUIET, ms=6)
        ax.set_xlabel(title if name == "distinct" else f"{title}, %")
        values = np.concatenate([line.get_xdata() for line in ax.lines])
        top = max(float(values.max()), 0.1)
        ax.set_xlim(min(float(values.min()), 0.0) - 0.05 * top, 1.08 * top)
    names = [f"{b.units[0].site}{', the set' if b.marked else ''}" for b in found.origin]
    _rows(axes[0], names)
    return figure


def repairs(found: Found) -> Figure:
    """Draw every repair's error, its part along the gradient, and when its replays diverge."""
    figure, axes = canvas(1.0 + 0.28 * len(found.tried), 1, 3, sharey=True)
    error, along, failed = axes[0]
    until, steps = found.replayed.replayer.until, found.replayed.replayer.steps
    top = until + 0.08 * steps
    for row, t in enumerate(found.tried):
        colour = UP if t.outcome.failures == len(t.outcome.fates) else QUIET
        if t.word == "averts it":
            colour = LIFTED
        error.plot(t.error.zeta.mean(), row, "o", color=colour, ms=6)
        mean, half = (100 * x for x in t.error.bias)
        along.errorbar(mean, row, xerr=half, fmt="o", color=colour, ms=5, capsize=2.5)
        at = [top if f.failed is None else f.failed for f in t.outcome.fates]
        rows = row + 0.3 * (np.arange(len(at)) / max(len(at) - 1, 1) - 0.5)
        failed.plot(at, rows, ".", color=colour, ms=8, alpha=0.7, mew=0)
    failed.axvspan(until, top + 0.08 * steps, color=BAND, lw=0, zorder=0)
    along.axvline(0.0, color=INK, lw=0.7)
    error.set_xlabel("zeta")
    along.set_xlabel("epsilon along the gradient, %")
    failed.set_xlabel("diverges at step; gray: survives")
    error.set_xlim(left=0.0)
    _rows(axes[0], [t.name for t in found.tried])
    return figure


def _rows(axes: Sequence[Axes], names: Sequence[str]) -> None:
    """Write the names of the rows on the left, and draw thin lines behind the marks."""
    axes[0].set_yticks(range(len(names)), names, fontsize=8.5)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    for ax in axes:
        ax.grid(axis="y", color="#e4e7eb", lw=0.6)
        ax.set_axisbelow(True)
