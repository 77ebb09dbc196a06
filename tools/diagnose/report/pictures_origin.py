"""Pictures of step 5, as matplotlib Figures: accounts, features and rows, rounding classes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.tools.diagnose.tensors.classes import CLASSES, EXACT, STICKY, TIE
from roundscope.tools.diagnose.tensors.findings import Findings
from roundscope.tools.diagnose.tensors.origin import Classes
from roundscope.tools.report.pictures import BAND, DOWN, INK, QUIET, UP, canvas
from roundscope.tools.trace.analysis.bias import threshold


def accounts(found: Findings) -> Figure:
    """Draw the bias of delta and its parts, with intervals."""
    o = found.origin
    named = {"delta, in all": o.total} | o.accounts
    figure, axes = canvas(0.9 + 0.3 * len(named))
    ax, y = axes[0, 0], np.arange(len(named))[::-1]
    for at, (name, b) in zip(y, named.items(), strict=True):
        colour = INK if b is o.total else UP if name in o.origins else QUIET
        ax.barh(at, b.mean, height=0.62, color=colour, alpha=0.85)
        ax.plot([b.low, b.high], [at, at], color=INK, lw=1.0)
        if b is not o.total and abs(o.share(name)) >= 5e-3:
            ax.annotate(
                f"{100 * o.share(name):+.0f} %",
                (1.01, at),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8.5,
            )
    ax.axvline(0.0, color=INK, lw=0.8)
    ax.set_yticks(y, list(named), fontfamily="monospace")
    ax.set_xlabel(f"mean error of delta per token, 95 % interval   ({found.where})")
    return figure


def features(found: Findings) -> Figure:
    """Draw, by feature, the mean of dO (O as delta reads it - O exact), and running sums by token.

    The sums are those of rows with several P = 1 and of the others.
    """
    o = found.origin
    figure, axes = canvas(3.0, 1, 2, width_ratios=[1.15, 1])
    left, right = axes[0]
    x, tokens = o.features, o.features.shape[0]
    band = threshold(x.shape[1]) * np.sqrt((x**2).sum(0)) / tokens
    at, means = np.arange(x.shape[1]), x.mean(0)
    left.bar(at, 2 * band, bottom=-band, width=1.0, color=BAND, label="random signs")
    left.bar(
        at,
        means,
        width=0.6,
        color=np.where(np.abs(means) > band, np.where(means > 0, UP, DOWN), QUIET),
    )
    left.axhline(0.0, color=INK, lw=0.6)
    left.set_xlabel("feature i")
    left.set_ylabel("mean over tokens of\ndO (O - O exact)")
    left.legend(fontsize=8.5, frameon=False)
    row = x.sum(1)
    for chosen, colour, label in ((o.several, UP, "several P = 1"), (~o.several, QUIET, "others")):
        right.plot(
            np.cumsum(np.where(chosen, row, 0.0)),
            color=colour,
            lw=1.4,
            label=f"{label}: {int(chosen.sum())} rows",
        )
    right.axhline(0.0, color=INK, lw=0.6)
    right.set_xlabel("token")
    right.set_ylabel("running sum, by kind of row")
    right.legend(fontsize=8.5, frameon=False, loc="best")
    return figure


def classes(found: Findings) -> Figure | None:
    """Draw the inexact events of each class for every rounding of the output, and their bias.

    Their bias is what they contribute to delta's error. None where nothing is inexact.
    """
    shown = [c for c in found.origin.classes if c.events[EXACT + 1 :].any()]
    if not shown:
        return None
    figure, axes = canvas(
        0.7 + 1.55 * len(shown), len(shown), 2, sharex="col", width_ratios=[1, 1.25]
    )
    for (left, right), c in zip(axes, shown, strict=True):
        _class_rows(left, right, c)
    axes[-1, 0].set_xlabel("share of the inexact events")
    axes[-1, 1].set_xlabel("contribution to delta's mean error per token")
    return figure


def _class_rows(left: Axes, right: Axes, c: Classes) -> None:
    names, y = CLASSES[EXACT + 1 :], np.arange(len(CLASSES) - 1)[::-1]
    events, bias, ones = (x[EXACT + 1 :] for x in (c.events, c.bias, c.ones_bias))
    colours = [
        UP if c.to_nearest and k in (TIE, STICKY) else QUIET for k in range(EXACT + 1, len(CLASSES))
    ]
    left.barh(y, events / max(events.sum(), 1), color=colours, height=0.65)
    left.set_yticks(y, names)
    left.set_title(
        f"{c.site}: {int(events.sum())} of {int(c.events.sum())} inexact", fontsize=9.5, loc="left"
    )
    right.barh(y, bias, color=colours, height=0.65)
    right.barh(y, ones, color="none", edgecolor=INK, lw=0.8, height=0.65)
    right.axvline(0.0, color=INK, lw=0.6)
    right.set_yticks([])
    right.set_title(
        f"{c.site}: in all {c.total:+.2g}; framed: rows with several P = 1",
        fontsize=9.5,
        loc="left",
    )
