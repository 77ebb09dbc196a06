"""The pictures: when runs diverge, their losses, the gradient's error, and its causes."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.run import (
    Result,
    Runs,
    before,
    measured,
    measures,
    of_arms,
)
from roundscope.tools.report.pictures import COLOURS, MARKERS, QUIET, canvas

COLUMNS = 3  # of the picture of losses
GRID = "#e4e7eb"


def outcomes(runs: Runs) -> Picture:
    """Draw steps to divergence and final loss: a row per arm, a dot per seed.

    An open triangle marks a run that ended without divergence.
    """
    arms = of_arms(runs)
    figure, axes = canvas(0.9 + 0.27 * len(arms), 1, 2, sharey=True)
    left, right = axes[0]
    for row, (name, own) in enumerate(arms.items()):
        for i, r in enumerate(own):
            y, x = row + 0.3 * ((i + 0.5) / len(own) - 0.5), min(r.time, r.steps)
            colour = COLOURS[1]
            if r.diverged is None:
                colour = QUIET if name == EXACT else COLOURS[0]
                left.plot(x, y, ">", color=colour, mfc="none", ms=5)
            else:
                left.plot(x, y, "o", color=colour, ms=5)
            if math.isfinite(r.loss):
                right.plot(r.loss, y, "o", color=colour, ms=4.5, alpha=0.8, mew=0)
            else:
                edge = right.get_yaxis_transform()
                right.plot(0.98, y, "x", color=colour, ms=5, transform=edge)
    left.set_yticks(range(len(arms)), list(arms), fontsize=9)
    left.set_ylim(len(arms) - 0.5, -0.5)
    left.set_xlim(0, 1.04 * max(r.steps for r in runs))
    left.set_xlabel("steps to divergence (triangle: none)")
    if any(math.isfinite(r.loss) for r in runs):
        right.set_xscale("log")
    right.set_xlabel("final loss (cross: not finite)")
    for ax in axes.flat:
        ax.grid(axis="y", color=GRID, lw=0.6)
        ax.set_axisbelow(True)
    return figure


def losses(runs: Runs) -> Picture:
    """Draw the loss along the run: a panel per arm, a line per seed; FP32 is grey."""
    others = of_arms(runs)
    exact = others.pop(EXACT, [])
    columns = max(1, min(COLUMNS, len(others)))
    deep = max(1, math.ceil(len(others) / columns))
    figure, axes = canvas(0.3 + 1.75 * deep, deep, columns, sharex=True, sharey=True)
    for ax, (name, own) in zip(axes.flat, others.items(), strict=False):
        ax.set_title(name, fontsize=9, loc="left")
        for r in [*exact, *own]:
            curve = np.array([(step, loss) for step, loss, _ in r.curve if math.isfinite(loss)])
            colour = QUIET if r.condition.name == EXACT else COLOURS[0]
            if curve.size:
                ax.plot(curve[:, 0], curve[:, 1], color=colour, lw=0.9, alpha=0.8)
            if r.condition.name != EXACT and r.diverged is not None:
                ax.axvline(r.diverged, color=COLOURS[1], lw=0.8, ls=":")
        ax.set_yscale("log")
    for ax in list(axes.flat)[len(others) :]:
        ax.axis("off")
    for ax in axes[-1]:
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("loss")
    return figure


def _with_measures(runs: Runs) -> dict[str, list[Result]]:
    """Return the runs of every arm but FP32 of which something was measured."""
    arms = {name: own for name, own in of_arms(runs).items() if name != EXACT}
    return {name: own for name, own in arms.items() if any(map(measures, own))}


def errors(runs: Runs) -> Picture | None:
    """Draw zeta and 1 - cosine along the run, medians over seeds; None if nothing was measured."""
    arms = _with_measures(runs)
    if not arms:
        return None
    read: dict[str, Callable[[Mapping[str, float]], float]] = {
        "zeta = |epsilon| / |g|": lambda numbers: numbers["zeta"],
        "1 - cosine": lambda numbers: 1.0 - numbers["cosine"],
    }
    figure, axes = canvas(3.4, 1, 2)
    for ax, (title, number) in zip(axes.flat, read.items(), strict=True):
        for i, (name, own) in enumerate(arms.items()):
            steps = [step for step, _ in measures(own[0])]
            values = np.array([[number(numbers) for _, numbers in measures(r)] for r in own])
            middle = values[0]
            if (values > 0).any(axis=0).all():
                middle = np.nanmedian(np.where(values > 0, values, np.nan), axis=0)
            colour, style = COLOURS[i % len(COLOURS)], ("-", "--", ":")[i // len(COLOURS) % 3]
            ax.plot(steps, middle, color=colour, ls=style, lw=1.3, label=name)
        ax.set_yscale("log")
        ax.set_xlabel("steps")
        ax.set_ylabel(title)
    _legend(figure, axes[0, 0])
    return figure


def sites(runs: Runs) -> Picture | None:
    """Draw zeta of every event alone: a dot per arm; None if nothing was measured."""
    arms = _with_measures(runs)
    names = {n for own in arms.values() for n in measured(own)}
    there = [site for site in Site if f"zeta_{site}" in names]
    if not there:
        return None
    figure, axes = canvas(0.9 + 0.26 * len(there))
    ax = axes[0, 0]
    for i, (name, own) in enumerate(arms.items()):
        x = [float(np.median([before(r, f"zeta_{site}") for r in own])) for site in there]
        kept = [(v, row) for row, v in enumerate(x) if v > 0]
        if kept:
            style = {"marker": MARKERS[i % 8], "color": COLOURS[i % len(COLOURS)], "ls": "none"}
            ax.plot(*zip(*kept, strict=True), ms=5, alpha=0.85, label=name, **style)
    ax.set_xscale("log")
    ax.set_yticks(range(len(there)), [f"{site}: {site.formula}" for site in there], fontsize=8.5)
    ax.set_ylim(len(there) - 0.5, -0.5)
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_xlabel("zeta with this event alone rounded, median over the run")
    _legend(figure, ax)
    return figure


def _legend(figure: Picture, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=5, fontsize=8.5, frameon=False)
