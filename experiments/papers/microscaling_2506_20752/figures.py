"""The pictures: how interventions end, where settings fail, the gradient's error, and the losses.

The gradient's error is that on the way to a divergence, with the events that make it.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.figures.series import (
    CALM,
    COLOURS,
    GRID,
    INK,
    LETHAL,
    QUIET,
    SHARE,
    canvas,
)
from roundscope.experiments.papers.microscaling_2506_20752.claims_epsilon import before, runs_of
from roundscope.experiments.papers.microscaling_2506_20752.conditions import SHAM, Scale
from roundscope.experiments.papers.microscaling_2506_20752.found import Found
from roundscope.experiments.papers.microscaling_2506_20752.launches import Runs
from roundscope.experiments.papers.microscaling_2506_20752.outcomes import Effect, outcomes
from roundscope.experiments.train.student.arms import EXACT, UNCHANGED, Arm
from roundscope.experiments.train.student.results import measures
from roundscope.tools.results.run import Run

COLOUR = {
    Effect.AVERTED: CALM,
    Effect.DELAYED: COLOURS[2],
    Effect.HASTENED: LETHAL,
    Effect.NONE: QUIET,
}
SHAMS = f"{SHAM}s: half an ulp in one step"
LINES = (
    ("zeta", "same state", COLOURS[0]),
    ("zeta_rceil", "same state, RCEIL", COLOURS[2]),
    ("zeta_apart", "two trainings", COLOURS[1]),
)


def opening(found: Found, scale: Scale) -> Figure | None:
    """Draw arms x seeds by lead: steps from parting to divergence; None without interventions."""
    leads = [lead for lead in scale.leads if any(at == lead for _, at in found.parted)]
    if not leads:
        return None
    names = list(
        dict.fromkeys(n for runs in found.parted.values() for n in runs if not n.startswith(SHAM))
    )
    lines = [UNCHANGED, SHAMS, *(n for n in names if n != UNCHANGED)]
    figure, axes = canvas(0.9 + 0.27 * len(lines), 1, len(leads), sharey=True)
    for ax, lead in zip(axes[0], leads, strict=True):
        _panel(ax, found, lead, lines)
        ax.set_title(f"changed {lead} steps before", fontsize=9.5, loc="left", color=INK)
    figure.supxlabel("steps from the change to divergence (hollow: none)", fontsize=9.5)
    axes[0, 0].set_yticks(range(len(lines)), lines, fontsize=9)
    axes[0, 0].set_ylim(len(lines) - 0.5, -0.6)
    return figure


def _panel(ax: Axes, found: Found, lead: int, lines: Sequence[str]) -> None:
    words = {o.name: o.effect for o in outcomes(found.parted, lead)}
    by_seed = {seed: runs for (seed, at), runs in found.parted.items() if at == lead}
    widest = 0.0
    starts = {seed: _start(runs.values()) for seed, runs in by_seed.items()}
    for row, line in enumerate(lines):
        ax.axhline(row, color=GRID, lw=0.8, zorder=0)
        if line in words:
            alpha = 0.0 if words[line] is Effect.NONE else 0.13
            ax.axhspan(row - 0.45, row + 0.45, color=COLOUR[words[line]], alpha=alpha, lw=0)
        for i, (seed, runs) in enumerate(by_seed.items()):
            y = row + 0.5 * ((i + 0.5) / len(by_seed) - 0.5)
            for name, r in runs.items():
                if name == line or (line == SHAMS and name.startswith(SHAM)):
                    widest = max(widest, _dot(ax, r, starts[seed], y))
    ax.set_xlim(-0.02 * widest, 1.06 * widest)
    ax.axvline(lead, color=INK, lw=0.7, ls=":")
    ax.tick_params(axis="y", length=0)


def _dot(ax: Axes, r: Run[Arm], start: int, y: float) -> float:
    """Draw a run by its steps since the parting; return the number that was drawn."""
    lived = r.diverged is None
    x = min(r.time, r.steps) - start
    ax.plot(
        x,
        y,
        "o",
        color=CALM if lived else LETHAL,
        ms=4.2,
        mfc="white" if lived else None,
        alpha=0.85,
        mew=0.9 if lived else 0,
    )
    return float(x)


def _start(runs: Iterable[Run[Arm]]) -> int:
    """Return the step at which the arms of a seed left the base."""
    return min(first for r in runs for first, _ in r.condition.changes if first)


def formats(found: Found, scale: Scale) -> Figure | None:
    """Draw formats x rates of all settings: the share of runs that diverged."""
    settings = [s for s in scale.settings if any(name == s.name for name, _ in found.trained)]
    if not settings:
        return None
    deep = [sum(name == s.name for name, _ in found.trained) for s in settings]
    figure, axes = canvas(
        0.5 + 0.26 * sum(deep) + 0.52 * len(settings),
        len(settings),
        1,
        gridspec_kw={"height_ratios": deep},
    )
    for ax, setting in zip(axes.flat, settings, strict=True):
        names = [f for name, f in found.trained if name == setting.name]
        for row, name in enumerate(names):
            for column, rate in enumerate(setting.rates):
                if own := found.of(setting.name, name, rate):
                    _cell(ax, row, column, own)
        ax.set_yticks(range(len(names)), names, fontsize=8.5)
        ax.set_xticks(
            range(len(setting.rates)), [f"{rate:g}" for rate in setting.rates], fontsize=8.5
        )
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlim(-0.5, max(3, *(len(s.rates) for s in settings)) - 0.5)
        ax.set_title(setting.name, fontsize=9.5, loc="left", color=INK)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes.flat[-1].set_xlabel("learning rate")
    return figure


def _cell(ax: Axes, row: int, column: int, own: Runs) -> None:
    k = diverged(own)
    ax.add_patch(
        Rectangle((column - 0.49, row - 0.46), 0.98, 0.92, color=SHARE(k / len(own)), lw=0)
    )
    steps = sorted(r.diverged for r in own if r.diverged is not None)
    text = f"{k}/{len(own)}" + (f" at {np.median(steps):.0f}" if steps else "")
    ax.text(
        column,
        row,
        text,
        ha="center",
        va="center",
        fontsize=8,
        color="white" if k == len(own) else INK,
    )


def growth(found: Found, scale: Scale) -> Figure | None:
    """Draw zeta by steps before divergence, a line per seed, and the share of every event alone."""
    own = runs_of(found)
    if not own:
        return None
    figure, axes = canvas(3.6, 1, 2)
    left, right = axes[0]
    for name, label, colour in LINES:
        for i, r in enumerate(own):
            looks = before(r)
            end = min(r.time, r.steps)
            left.plot(
                [step - end for step, _ in looks],
                [m[name] for _, m in looks],
                color=colour,
                lw=1.1,
                alpha=0.75,
                label=label if i == 0 else None,
            )
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("steps to divergence")
    left.set_ylabel("zeta = |epsilon| / |g|")
    left.legend(fontsize=8.5, frameon=False)
    _events(right, own)
    return figure


def _events(ax: Axes, own: Runs) -> None:
    names = [
        n
        for n in measures(own[0])[0][1]
        if n.startswith("zeta_") and n.removeprefix("zeta_") not in ("rceil", "apart")
    ]
    value = {
        n: [
            float(np.median([m[n] / m["zeta"] for _, m in looks]))
            for r in own
            if (looks := before(r))
        ]
        for n in names
    }
    order = sorted(
        (n for n in names if any(v > 0 for v in value[n])),
        key=lambda n: -float(np.median(value[n])),
    )
    for row, n in enumerate(order):
        ax.plot(value[n], [row] * len(value[n]), "o", color=COLOURS[0], ms=4, alpha=0.7, mew=0)
    ax.set_yticks(range(len(order)), [n.removeprefix("zeta_") for n in order], fontsize=8.5)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xscale("log")
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_xlabel("zeta of one event alone / zeta of all")


def losses(found: Found, scale: Scale) -> Figure | None:
    """Draw the loss of the base's formats at the base's rate, a line per seed; FP32 is grey."""
    exact = found.of(scale.base.name, EXACT, scale.rate)
    others = {f: found.of(scale.base.name, f, scale.rate) for f in scale.formats if f != EXACT}
    drawn = {f: own for f, own in others.items() if own}
    if not drawn:
        return None
    columns = min(4, len(drawn))
    deep = math.ceil(len(drawn) / columns)
    figure, axes = canvas(0.4 + 1.7 * deep, deep, columns, sharex=True, sharey=True)
    for ax, (name, own) in zip(axes.flat, drawn.items(), strict=False):
        for r in [*exact, *own]:
            curve = np.array([(step, loss) for step, loss, _ in r.curve if math.isfinite(loss)])
            colour = QUIET if r.condition.name == EXACT else COLOURS[0]
            ax.plot(curve[:, 0], curve[:, 1], color=colour, lw=0.9, alpha=0.8)
        ax.set_title(name, fontsize=9, loc="left")
        ax.set_yscale("log")
    for ax in list(axes.flat)[len(drawn) :]:
        ax.axis("off")
    for ax in axes[-1]:
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("loss")
    return figure
