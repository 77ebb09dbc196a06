"""Pictures of the study: the atoms' likeness, delta's error over steps, several maxima."""

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.experiments.framework.figures.series import CALM, LETHAL
from roundscope.experiments.framework.study import Figure
from roundscope.experiments.papers.mechanism_2510_04212.conditions import (
    AS_IT_IS,
    EXACT,
    MOVED,
    PLAIN,
    VARIANTS,
    ZERO,
    Results,
)
from roundscope.experiments.papers.mechanism_2510_04212.looks import NAMES
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, QUIET, canvas

ARITHMETICS = {AS_IT_IS: CALM, ZERO: LETHAL}
BESIDE = {"atom": "unpaired", "first": "shuffled"}  # what is drawn, and its null, hollow
TITLES = {
    "atom": "mean cosine of two tokens' atoms",
    "first": "largest singular value's share of R",
}


def likeness(r: Results) -> Picture:
    """Draw the atoms' mean cosine and the first share of R, by kind of layers, beside the nulls."""
    figure, (axes,) = canvas(3.4, 1, 2)
    variants = [v for v in VARIANTS if r.of(v, AS_IT_IS) or r.of(v, ZERO)]
    for ax, (name, null) in zip(axes, BESIDE.items(), strict=True):
        for place, variant in enumerate(variants):
            for number, (arithmetic, colour) in enumerate(ARITHMETICS.items()):
                runs, x = r.of(variant, arithmetic), place + 0.24 * (number - 0.5)
                for column, fill, move in ((name, colour, -0.05), (null, "white", 0.05)):
                    y = list(r.values(runs, column).values())
                    look = {"color": colour, "mfc": fill, "ms": 4.5, "mew": 0.8}
                    ax.plot([x + move] * len(y), y, MARKERS[number], **look)
        ax.axhline(0.5, color=INK, lw=0.7)
        ax.set_xticks(range(len(variants)), variants, fontsize=8, rotation=25, ha="right")
        ax.set_title(TITLES[name], fontsize=9.5, loc="left")
    for number, (arithmetic, colour) in enumerate(ARITHMETICS.items()):
        axes[0].plot([], [], MARKERS[number], color=colour, label=arithmetic)
    axes[0].legend(fontsize=8.5, frameon=False)
    return figure


def errors(r: Results) -> Picture | None:
    """Draw figure 5a: the errors of delta added up over looks, a line for each head and seed."""
    cases = [case for case in (AS_IT_IS, ZERO) if r.of(PLAIN, case)]
    if not cases:
        return None
    figure, (axes,) = canvas(3.2, 1, len(cases))
    for ax, arithmetic in zip(axes, cases, strict=True):
        for seed, run in enumerate(r.of(PLAIN, arithmetic)):
            looks = r.looks(run)
            own = looks[:, 2 + len(NAMES) :]
            total = np.cumsum(own, axis=0) / np.abs(own).sum(0)
            ax.plot(looks[:, 0], total, color=COLOURS[seed % len(COLOURS)], lw=0.8, alpha=0.7)
        ax.axhline(0.0, color=INK, lw=0.7)
        ax.set_xlabel("steps")
        ax.set_title(f"{PLAIN}, {arithmetic}", fontsize=9.5, loc="left")
    axes[0].set_ylabel("error of delta added up,\nover the sum of its sizes")
    return figure


def maxima(r: Results) -> Picture:
    """Draw the share of rows with several maxima over steps, a line for each run."""
    variants = [v for v in VARIANTS if r.of(v, EXACT)]
    rows = -(-len(variants) // 4)
    figure, axes = canvas(2.3 * rows, rows, min(4, len(variants)), sharey=True)
    for ax, variant in zip(axes.flat, variants, strict=False):
        for (kind, arithmetic), runs in r.by.items():
            for run in runs if kind == variant else ():
                looks = r.looks(run, MOVED)
                exact = arithmetic == EXACT
                colour = LETHAL if run.diverged is not None else QUIET if exact else CALM
                ax.plot(looks[:, 0], looks[:, 2 + NAMES.index("tied")], color=colour, lw=0.9)
        ax.set_title(variant, fontsize=9.5, loc="left")
        ax.set_xlabel("steps")
    for ax in axes.flat[len(variants) :]:
        ax.set_visible(False)
    axes[0, 0].set_ylabel("rows with several maxima")
    return figure


FIGURES = (
    Figure(
        title="Are the updates alike, and has their sum low rank?",
        draw=likeness,
        caption="A mark for each run, the median of its looks. Left: the mean cosine of the atoms"
        " X[t]^T (PK)[t] of two tokens; hollow: with X permuted against PK. Right: the share that"
        " the largest singular value has of |R|^2; hollow: with the errors permuted over tokens."
        " Where hollow and full marks agree, the atoms make the rank, whatever the errors are.",
    ),
    Figure(
        title="Has the error of delta one sign over steps?",
        draw=errors,
        caption="Figure 5a of the paper: delta's error, its mean over the tokens of four sequences,"
        " added up over looks of every 25 steps and divided by the sum of its sizes; a line for"
        " each head, a color for each seed; up to where it diverged. One sign throughout would end"
        " at 1 or -1.",
    ),
    Figure(
        title="Do several maxima in a row warn of a failure?",
        draw=maxima,
        caption="The share of rows with several maxima, as the released code counts them, on BF16"
        " scores. Red: runs that diverged, up to where their loss moved; blue: others; grey: FP32.",
    ),
)
