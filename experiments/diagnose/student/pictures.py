"""Pictures of steps 3 to 5 of a proxy's diagnosis: gradient's error, blocks, repairs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.diagnose.student.errors import GRADIENT
from roundscope.experiments.diagnose.student.run import ALL, REST, SET, Found
from roundscope.tools.diagnose.report.pictures import LIFTED, logarithmic
from roundscope.tools.report.pictures import BAND, DOWN, INK, QUIET, UP, canvas


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
    right.annotate(
        " the gradient",
        (g, 1.0),
        xycoords=("data", "axes fraction"),
        fontsize=8.5,
        color=DOWN,
        va="bottom",
    )
    logarithmic(left, left.xaxis, left.set_xscale)
    left.set_xlabel("zeta: |epsilon| / |g|, a tick for each step")
    right.set_xlabel("A: how the error adds up over steps; gray: sign flips, 95 %")
    right.set_xlim(left=0.0)
    left.set_yticks(range(len(own)), list(own), fontsize=8.5)
    left.set_ylim(len(own) - 0.5, -0.5)
    _lines(axes[0])
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
    axes[0, 0].set_yticks(range(len(names)), names, fontsize=8.5)
    axes[0, 0].set_ylim(len(found.origin) - 0.5, -0.5)
    _lines(axes[0])
    return figure


def repairs(found: Found) -> Figure:
    """Draw every repair's error, its part along the gradient, and when its replays diverge."""
    figure, axes = canvas(1.0 + 0.28 * len(found.tried), 1, 3, sharey=True)
    steps = found.replayed.replayer.steps
    top = found.replayed.replayer.until + 0.08 * steps
    for row, t in enumerate(found.tried):
        colour = UP if t.outcome.failures == len(t.outcome.fates) else QUIET
        if t.word == "averts it":
            colour = LIFTED
        axes[0, 0].plot(t.error.zeta.mean(), row, "o", color=colour, ms=6)
        mean, half = t.error.bias
        axes[0, 1].errorbar(
            100 * mean, row, xerr=100 * half, fmt="o", color=colour, ms=5, capsize=2.5
        )
        at = [top if f.failed is None else f.failed for f in t.outcome.fates]
        axes[0, 2].plot(
            at,
            row + 0.3 * (np.arange(len(at)) / max(len(at) - 1, 1) - 0.5),
            ".",
            color=colour,
            ms=8,
            alpha=0.7,
            mew=0,
        )
    axes[0, 2].axvspan(
        found.replayed.replayer.until, top + 0.08 * steps, color=BAND, lw=0, zorder=0
    )
    axes[0, 1].axvline(0.0, color=INK, lw=0.7)
    for ax, text in zip(
        axes[0],
        ("zeta", "epsilon along the gradient, %", "diverges at step; gray: survives"),
        strict=True,
    ):
        ax.set_xlabel(text)
    axes[0, 0].set_xlim(left=0.0)
    axes[0, 0].set_yticks(range(len(found.tried)), [t.name for t in found.tried], fontsize=8.5)
    axes[0, 0].set_ylim(len(found.tried) - 0.5, -0.5)
    _lines(axes[0])
    return figure


def _lines(axes: Sequence[Axes]) -> None:
    for ax in axes:
        ax.grid(axis="y", color="#e4e7eb", lw=0.6)
        ax.set_axisbelow(True)
