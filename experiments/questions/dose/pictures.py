"""The pictures: time to divergence and final loss against significand bits, and ||W_Q||."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.counts import time_of
from roundscope.experiments.framework.figures.survival import decades, survival
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.results import Results
from roundscope.experiments.questions.dose.words import mode_words, site_words
from roundscope.tools.report.pictures import BAND, INK, QUIET, canvas
from roundscope.tools.results.run import Run

STYLE = {  # colors that color-blind readers can tell apart
    RoundingMode.TIES_TO_EVEN: ("#0072b2", "o"),
    RoundingMode.TIES_TO_AWAY: ("#56b4e9", "s"),
    RoundingMode.STOCHASTIC: ("#009e73", "D"),
    RoundingMode.TOWARD_ZERO: ("#d55e00", "v"),
    RoundingMode.AWAY_FROM_ZERO: ("#cc79a7", "^"),
}
COLUMNS, ASIDE = 2, 0.17


def times(r: Results) -> Figure:
    """Draw steps to divergence: seeds as dots, medians with the seeds' range.

    An arrow marks runs that ended without divergence.
    """
    figure, axes = _panels(r, 3.0)
    for (site, rate), ax in zip(r.panels(), axes, strict=False):
        for mode, aside, series in _series(r, site, rate):
            survival(
                ax, STYLE.get(mode, (QUIET, "x")), {p + aside: own for p, own in series.items()}
            )
        found = [time_of(own) for _, _, series in _series(r, site, rate) for own in series.values()]
        first, steps = min(min(t.low, t.steps) for t in found), max(t.steps for t in found)
        ax.set_yscale("log")
        ax.set_ylim(max(1.0, 0.7 * min(first, 0.5 * steps)), 1.7 * steps)
        decades(ax)
    axes[0].set_ylabel("steps to divergence")
    return _legend(figure, r, exact=False)


def losses(r: Results) -> Figure:
    """Draw final losses: seeds as dots, medians; the grey band is the exact arms' range.

    A cross at the top is a loss that is not finite.
    """
    figure, axes = _panels(r, 2.8)
    for (site, rate), ax in zip(r.panels(), axes, strict=False):
        series = list(_series(r, site, rate))
        exact = [r.exact(run).loss for _, _, own in series for runs in own.values() for run in runs]
        ax.axhspan(np.nanmin(exact), np.nanmax(exact), color=BAND, lw=0, zorder=0)
        for mode, aside, own in series:
            _losses(ax, mode, aside, own)
        ax.set_yscale("log")
        decades(ax)
    axes[0].set_ylabel("final loss, nats (mean of 50 steps)")
    return _legend(figure, r)


def _losses(ax: Axes, mode: RoundingMode, aside: float, series: dict[int, list[Run[Dose]]]) -> None:
    colour, marker = STYLE.get(mode, (QUIET, "x"))
    middle = []
    for p, own in series.items():
        seen = [run.loss for run in own if math.isfinite(run.loss)]
        ax.plot([p + aside] * len(seen), seen, ".", color=colour, ms=5, alpha=0.45, mew=0)
        if len(seen) < len(own):
            ax.plot(
                p + aside,
                0.98,
                "x",
                color=colour,
                transform=ax.get_xaxis_transform(),
                clip_on=False,
            )
        middle.append(
            float(np.median([run.loss if math.isfinite(run.loss) else math.inf for run in own]))
        )
    finite = [m if math.isfinite(m) else math.nan for m in middle]
    ax.plot([p + aside for p in series], finite, color=colour, marker=marker, ms=5, lw=1.3)


def norms(r: Results) -> Figure:
    """Draw ||W_Q|| along the run at the fewest bits: a thin line per seed; the exact arms are grey.

    A cross marks where an arm diverged.
    """
    figure, axes = _panels(r, 2.8)
    for (site, rate), ax in zip(r.panels(), axes, strict=False):
        series = list(_series(r, site, rate))
        exact = {
            r.exact(run).condition: r.exact(run)
            for _, _, own in series
            for runs in own.values()
            for run in runs
        }
        for run in exact.values():
            _line(ax, run, QUIET)
        for mode, _, own in series:
            for run in own[min(own)]:
                _line(ax, run, STYLE.get(mode, (QUIET, "x"))[0])
        least = min(min(own) for _, _, own in series)
        ax.set_title(f"{ax.get_title(loc='left')}, p = {least}", fontsize=9, loc="left")
        ax.set_xlabel("steps")
        ax.set_xticks(np.linspace(0, max(run.condition.steps for run in exact.values()), 3))
        ax.set_xlim(left=0, right=max(run.condition.steps for run in exact.values()))
        ax.set_yscale("log")
        decades(ax)
    axes[0].set_ylabel("largest ||W_Q|| of a head")
    return _legend(figure, r)


def _line(ax: Axes, run: Run[Dose], colour: str) -> None:
    curve = np.array([(step, norm) for step, _, norm in run.curve if math.isfinite(norm)])
    ax.plot(curve[:, 0], curve[:, 1], color=colour, lw=0.8, alpha=0.75)
    if run.diverged is not None:
        ax.plot(
            run.diverged, np.interp(run.diverged, curve[:, 0], curve[:, 1]), "x", color=colour, ms=5
        )


def _panels(r: Results, height: float) -> tuple[Figure, Sequence[Any]]:
    panels = r.panels()
    columns = min(COLUMNS, len(panels))
    deep = math.ceil(len(panels) / columns)
    figure, axes = canvas(0.5 + height * deep, deep, columns)
    for (site, rate), ax in zip(panels, axes.flat, strict=False):
        ax.set_title(f"{site_words(site)}, lr {rate:g}", fontsize=9, loc="left")
        ax.set_xlabel("significand bits p (BF16 has 8)")
        bits = {p for s, _, p, lr in r.points if (s, lr) == (site, rate)}
        ax.set_xticks(range(min(bits), max(bits) + 1))
        ax.set_xlim(min(bits) - 0.5, max(bits) + 0.5)
    for ax in axes.flat[len(panels) :]:
        ax.axis("off")
    return figure, list(axes.flat)


def _series(
    r: Results, site: Any, rate: float
) -> list[tuple[RoundingMode, float, dict[int, list[Run[Dose]]]]]:
    """Return (mode, its shift to the side, bits -> results) of a panel."""
    modes = r.modes()
    place = {mode: ASIDE * (i - (len(modes) - 1) / 2) for i, mode in enumerate(modes)}
    found = [(mode, place[mode], r.series(site, mode, rate)) for mode in modes]
    return [item for item in found if item[2]]


def _legend(figure: Figure, r: Results, exact: bool = True) -> Figure:
    from matplotlib.lines import Line2D

    styles = [(mode, *STYLE.get(mode, (QUIET, "x"))) for mode in r.modes()]
    lines = [
        Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=mode_words(mode))
        for mode, colour, marker in styles
    ]
    lines += [Line2D([], [], color=BAND, lw=5, label="exact (FP32)")] if exact else []
    figure.legend(
        handles=lines,
        loc="outside upper center",
        ncols=len(lines),
        fontsize=8.5,
        frameon=False,
        labelcolor=INK,
    )
    return figure


PICTURES: tuple[tuple[str, Callable[[Results], Figure]], ...] = (
    ("How many steps does training survive?", times),
    ("What loss is left?", losses),
    ("What grows first?", norms),
)
