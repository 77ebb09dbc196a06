"""The pictures: when runs diverge, their losses, the gradient's error, and its causes."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import Result, before, measured, measures, of_arms
from roundscope.tools.report.pictures import COLOURS, QUIET, canvas

COLUMNS = 3


def outcomes(results: Sequence[Result]) -> Figure:
    """Draw steps to divergence and final loss: a row per arm, a dot per seed.

    An open triangle marks a run that ended without divergence.
    """
    arms = of_arms(results)
    figure, axes = canvas(0.9 + 0.27 * len(arms), 1, 2, sharey=True)
    for row, (name, runs) in enumerate(arms.items()):
        colour = QUIET if name == EXACT else COLOURS[0]
        for i, r in enumerate(runs):
            y = row + 0.3 * ((i + 0.5) / len(runs) - 0.5)
            ended = r.diverged is None
            x = min(r.time, r.steps)
            axes[0, 0].plot(
                x,
                y,
                ">" if ended else "o",
                color=colour if ended else COLOURS[1],
                mfc="none" if ended else None,
                ms=5,
            )
            _loss(axes[0, 1], r, y, colour if ended else COLOURS[1])
    axes[0, 0].set_yticks(range(len(arms)), list(arms), fontsize=9)
    axes[0, 0].set_ylim(len(arms) - 0.5, -0.5)
    axes[0, 0].set_xlim(0, 1.04 * max(r.steps for r in results))
    axes[0, 0].set_xlabel("steps to divergence (triangle: none)")
    if any(math.isfinite(r.loss) for r in results):
        axes[0, 1].set_xscale("log")
    axes[0, 1].set_xlabel("final loss (cross: not finite)")
    for ax in axes.flat:
        ax.grid(axis="y", color="#e4e7eb", lw=0.6)
        ax.set_axisbelow(True)
    return figure


def _loss(ax: Axes, r: Result, y: float, colour: str) -> None:
    if math.isfinite(r.loss):
        ax.plot(r.loss, y, "o", color=colour, ms=4.5, alpha=0.8, mew=0)
    else:
        ax.plot(0.98, y, "x", color=colour, ms=5, transform=ax.get_yaxis_transform())


def losses(results: Sequence[Result]) -> Figure:
    """Draw the loss along the run: a panel per arm, a line per seed; FP32 is grey."""
    arms = of_arms(results)
    exact = arms.get(EXACT, [])
    others = {name: runs for name, runs in arms.items() if name != EXACT}
    columns = max(1, min(COLUMNS, len(others)))
    deep = max(1, math.ceil(len(others) / columns))
    figure, axes = canvas(0.3 + 1.75 * deep, deep, columns, sharex=True, sharey=True)
    for ax, (name, runs) in zip(axes.flat, others.items(), strict=False):
        ax.set_title(name, fontsize=9, loc="left")
        for r in [*exact, *runs]:
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


def errors(results: Sequence[Result]) -> Figure | None:
    """Draw zeta and 1 - cosine along the run, medians over seeds; None if nothing was measured."""
    arms = _with_measures(results)
    if not arms:
        return None
    figure, axes = canvas(3.4, 1, 2)
    for i, (name, runs) in enumerate(arms.items()):
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "ls": ("-", "--", ":")[i // len(COLOURS) % 3],
            "lw": 1.3,
            "label": name,
        }
        for ax, read in zip(axes.flat, (_zeta, _turn), strict=True):
            steps = [step for step, _ in measures(runs[0])]
            values = np.array([[read(numbers) for _, numbers in measures(r)] for r in runs])
            middle = values[0]
            if (values > 0).any(axis=0).all():
                middle = np.nanmedian(np.where(values > 0, values, np.nan), axis=0)
            ax.plot(steps, middle, **style)
    for ax, title in zip(axes.flat, ("zeta = |epsilon| / |g|", "1 - cosine"), strict=True):
        ax.set_yscale("log")
        ax.set_xlabel("steps")
        ax.set_ylabel(title)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside upper left",
        ncols=5,
        fontsize=8.5,
        frameon=False,
    )
    return figure


def _with_measures(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs of every arm but FP32 of which something was measured."""
    return {
        name: runs
        for name, runs in of_arms(results).items()
        if name != EXACT and any(measures(r) for r in runs)
    }


def _zeta(numbers: Mapping[str, float]) -> float:
    return numbers["zeta"]


def _turn(numbers: Mapping[str, float]) -> float:
    return 1.0 - numbers["cosine"]


def sites(results: Sequence[Result]) -> Figure | None:
    """Draw zeta of every event alone: a dot per arm; None if nothing was measured."""
    arms = _with_measures(results)
    names = {n for runs in arms.values() for n in measured(runs)}
    there = [site for site in Site if f"zeta_{site}" in names]
    if not there:
        return None
    figure, axes = canvas(0.9 + 0.26 * len(there))
    ax = axes[0, 0]
    for i, (name, runs) in enumerate(arms.items()):
        x = [float(np.median([before(r, f"zeta_{site}") for r in runs])) for site in there]
        kept = [(v, row) for row, v in enumerate(x) if v > 0]
        if kept:
            ax.plot(
                *zip(*kept, strict=True),
                "osD^vPX*"[i % 8],
                color=COLOURS[i % len(COLOURS)],
                ms=5,
                alpha=0.85,
                label=name,
            )
    ax.set_xscale("log")
    ax.set_yticks(range(len(there)), [f"{site}: {site.formula}" for site in there], fontsize=8.5)
    ax.set_ylim(len(there) - 0.5, -0.5)
    ax.grid(axis="y", color="#e4e7eb", lw=0.6)
    ax.set_xlabel("zeta with this event alone rounded, median over the run")
    figure.legend(loc="outside upper left", ncols=5, fontsize=8.5, frameon=False)
    return figure
