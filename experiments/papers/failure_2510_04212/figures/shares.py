"""Heat maps of the share of runs that diverged.

They show rows x cases, layers x heads, and the cells of the factorial.
"""

import math
from collections.abc import Sequence
from itertools import product
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.figures.series import INK, SHARE, canvas
from roundscope.experiments.papers.failure_2510_04212.conditions.cases import AMPLIFIED
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import (
    ALONE,
    EXACT,
    HALVES,
    ONCE,
    UNFUSED,
    cell,
)
from roundscope.experiments.papers.failure_2510_04212.results import Own, Results

LINES = {  # row or mode -> words, in the picture's order
    "0": "0   the case itself",
    "0'": "0'  FP32",
    "1": "1   4 key tiles in place of one",
    "5": "5   delta = rowsum(P dP)",
    "6": "6   delta from O in FP32",
    "7": "7   O path in FP32",
    "9": "9   PV in FP32, output rounded",
    "10 beta 2": "10  stabilized, beta 2",
    "10 beta 7": "10  stabilized, beta 7",
    "centred": "delta = rowsum(P dP) / rowsum(P)",
    "scores": "scores, m, l in FP32",
    "same scores": "backward's scores as forward's",
    "stochastic": "O path stochastic",
    "toward-zero": "O path toward zero",
    "ties-to-away": "O path ties away",
    "ties-to-even": "O path nearest-even",
    "ties-to-even less": "O path nearest-even, p - 1",
    "stochastic less": "O path stochastic, p - 1",
    "stochastic more": "O path stochastic, p + 1",
    "toward zero": "O toward zero, BF16",
    "fa2-bf16": "preset fa2-bf16",
    UNFUSED: "preset baseline-bf16",
    ONCE: "same, backward's scores rounded once",
}


def opening(r: Results) -> Figure:
    """Draw rows x cases: the share of runs that diverged, k/n and the median step."""
    cases = r.scale.cases
    table = {
        (line(row, c.bits), c.name): r.of(c.name, row) for c in cases for row in r.rows(c.name)
    }
    lines = [name for name in LINES if any((name, c.name) in table for c in cases)]
    figure, axes = canvas(0.9 + 0.27 * len(lines))
    ax = axes[0, 0]
    cells(ax, [[table.get((name, c.name), []) for c in cases] for name in lines])
    ax.set_yticks(range(len(lines)), [LINES[name] for name in lines], fontsize=9)
    ax.set_xticks(
        range(len(cases)),
        [f"{c.name}\n{_broken(c.words, len(cases))}" for c in cases],
        fontsize=8.5,
    )
    ax.xaxis.tick_top()
    papers = sum(name[0].isdecimal() for name in lines)  # the paper's rows stand above the line
    ax.axhline(papers - 0.5, color=INK, lw=0.8)
    return figure


def line(row: str, bits: int) -> str:
    """Return the line of LINES that a row is drawn in."""
    name, _, own = row.rpartition(" ")
    if not own.isdecimal() or name not in LINES:
        return row
    return name + {-1: " less", 0: "", 1: " more"}[int(own) - bits]


def _broken(words: str, columns: int) -> str:
    """Return words broken into lines that fit above one of so many columns."""
    letters = 90 // max(columns, 5)
    if max(map(len, words.split(" "))) > letters:
        words = words.replace("=\xa0", "= ")
    return fill(words, letters, break_long_words=False, break_on_hyphens=False)


def cells(ax: Axes, own: Sequence[Sequence[Own]]) -> None:
    """Draw a heat map of the share that diverged; a cell is empty where nothing was run."""
    share = np.array(
        [[diverged(runs) / len(runs) if runs else math.nan for runs in row] for row in own]
    )
    ax.imshow(np.ma.masked_invalid(share), cmap=SHARE, vmin=0, vmax=1, aspect="auto")
    for (i, j), x in np.ndenumerate(share):
        if not math.isnan(x):
            ax.text(
                j,
                i,
                _cell(own[i][j]),
                ha="center",
                va="center",
                fontsize=8.5,
                color="white" if x > 0.8 else INK,
            )
    ax.set_xticks(np.arange(-0.5, share.shape[1]), minor=True)
    ax.set_yticks(np.arange(-0.5, share.shape[0]), minor=True)
    ax.grid(which="minor", color="white", lw=2)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)


def _cell(runs: Own) -> str:
    steps = [run.diverged for run in runs if run.diverged is not None]
    return f"{len(steps)}/{len(runs)}" + (f"  at {np.median(steps):.0f}" if steps else "")


def places(r: Results) -> Figure | None:
    """Draw layers x heads of case A: O low in one head only, and FP32 in one head only.

    None where it was not run.
    """
    c = r.scale.config
    grids = {
        start: [
            [r.of(AMPLIFIED, f"8 {start} head {i}.{h}") for h in range(c.heads)]
            for i in range(c.layers)
        ]
        for start in (ALONE, EXACT)
    }
    if not grids[ALONE][0][0]:
        return None
    figure, axes = canvas(0.7 + 0.42 * c.layers, 1, 2)
    titles = {ALONE: "O path low in this head only", EXACT: "O path FP32 in this head only"}
    for ax, (start, own) in zip(axes[0], grids.items(), strict=True):
        cells(ax, own)
        ax.set_title(titles[start], fontsize=9.5, loc="left")
        ax.set_xticks(range(c.heads), [f"head {h}" for h in range(c.heads)], fontsize=9)
        ax.set_yticks(range(c.layers), [f"layer {i}" for i in range(c.layers)], fontsize=9)
    return figure


def factorial(r: Results) -> Figure | None:
    """Draw where O is rounded x scores x statistics (rows), tiles (columns), a panel for each case.

    None where it was not run.
    """
    cases = [case for case in r.scale.cases if r.of(case.name, cell("both", "FP32", "FP32", 1))]
    if not cases:
        return None
    lines = list(product(HALVES, ("BF16", "FP32"), ("BF16", "FP32")))
    figure, axes = canvas(1.0 + 0.27 * len(lines), 1, len(cases), sharey=True)
    for ax, case in zip(axes[0], cases, strict=True):
        runs = [
            [r.of(case.name, cell(half, scores, stats, tiles)) for tiles in (1, 4)]
            for half, scores, stats in lines
        ]
        cells(ax, runs)
        title = f"{case.name}: O {case.path.partition(':')[2]}, p = {case.bits}"
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.set_xticks((0, 1), ("one key tile", "4 key tiles"), fontsize=9)
    axes[0, 0].set_yticks(
        range(len(lines)),
        [f"O {half}, scores {scores}, m l {stats}" for half, scores, stats in lines],
        fontsize=8.5,
    )
    return figure
