"""The pictures: how interventions end, where settings fail, the gradient's error, and losses."""

import math
from collections.abc import Sequence
from typing import Any

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
from roundscope.experiments.papers.microscaling_2506_20752.claims import before, runs_of
from roundscope.experiments.papers.microscaling_2506_20752.conditions import SHAM
from roundscope.experiments.papers.microscaling_2506_20752.interventions import Effect, outcomes
from roundscope.experiments.papers.microscaling_2506_20752.measurements import Found, Runs
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT, UNCHANGED
from roundscope.experiments.train.student.run import measures

COLOUR = {
    Effect.AVERTED: CALM,
    Effect.DELAYED: COLOURS[2],
    Effect.HASTENED: LETHAL,
    Effect.NONE: QUIET,
}
DIED: dict[str, Any] = {"color": LETHAL, "mew": 0}
LIVED: dict[str, Any] = {"color": CALM, "mfc": "white", "mew": 0.9}
SHAMS = f"{SHAM}s: half an ulp in one step"
LINES = (
    ("zeta", "same state", COLOURS[0]),
    ("zeta_rceil", "same state, RCEIL", COLOURS[2]),
    ("zeta_apart", "two trainings", COLOURS[1]),
)


def opening(found: Found) -> Figure | None:
    """Draw arms x seeds by lead: steps from parting to divergence; None without interventions."""
    leads = found.leads
    if not leads:
        return None
    names = dict.fromkeys(n for runs in found.parted.values() for n in runs)
    arms = [n for n in names if n != UNCHANGED and not n.startswith(SHAM)]
    lines = [UNCHANGED, SHAMS, *arms]
    figure, axes = canvas(0.9 + 0.27 * len(lines), 1, len(leads), sharey=True)
    for ax, lead in zip(axes[0], leads, strict=True):
        _panel(ax, found, lead, lines)
        ax.set_title(f"changed {lead} steps before", fontsize=9.5, loc="left", color=INK)
    figure.supxlabel("steps from the change to divergence (hollow: none)", fontsize=9.5)
    _names(axes[0, 0], lines, size=9, top=-0.6)
    return figure


def _names(ax: Axes, names: Sequence[str], size: float, top: float = -0.5) -> None:
    """Name the rows of a picture, from the top."""
    ax.set_yticks(range(len(names)), names, fontsize=size)
    ax.set_ylim(len(names) - 0.5, top)


def _panel(ax: Axes, found: Found, lead: int, lines: Sequence[str]) -> None:
    words = {o.name: o.effect for o in outcomes(found.parted, lead)}
    by_seed = {seed: runs for (seed, at), runs in found.parted.items() if at == lead}
    widest = 0.0
    for row, line in enumerate(lines):
        ax.axhline(row, color=GRID, lw=0.8, zorder=0)
        if line in words:
            alpha = 0.0 if words[line] is Effect.NONE else 0.13
            ax.axhspan(row - 0.45, row + 0.45, color=COLOUR[words[line]], alpha=alpha, lw=0)
        for i, runs in enumerate(by_seed.values()):
            parting = min(first for r in runs.values() for first, _ in r.condition.changes if first)
            y = row + 0.5 * ((i + 0.5) / len(by_seed) - 0.5)
            for name, r in runs.items():
                if name == line or (line == SHAMS and name.startswith(SHAM)):
                    x = float(min(r.time, r.steps) - parting)
                    ax.plot(x, y, "o", ms=4.2, alpha=0.85, **(DIED if r.time < math.inf else LIVED))
                    widest = max(widest, x)
    ax.set_xlim(-0.02 * widest, 1.06 * widest)
    ax.axvline(lead, color=INK, lw=0.7, ls=":")
    ax.tick_params(axis="y", length=0)


def formats(found: Found) -> Figure | None:
    """Draw formats x rates of all settings: the share of runs that diverged."""
    names = {s: [f for name, f in found.trained if name == s.name] for s in found.scale.settings}
    names = {setting: own for setting, own in names.items() if own}
    if not names:
        return None
    deep = [len(own) for own in names.values()]
    height, ratios = 0.5 + 0.26 * sum(deep) + 0.52 * len(names), {"height_ratios": deep}
    figure, axes = canvas(height, len(names), 1, gridspec_kw=ratios)
    for ax, (setting, own) in zip(axes.flat, names.items(), strict=True):
        for row, name in enumerate(own):
            for column, rate in enumerate(setting.rates):
                if runs := found.of(setting.name, name, rate):
                    _cell(ax, row, column, runs)
        rates = [f"{rate:g}" for rate in setting.rates]
        ax.set_xticks(range(len(rates)), rates, fontsize=8.5)
        _names(ax, own, size=8.5)
        ax.set_xlim(-0.5, max(3, *(len(s.rates) for s in names)) - 0.5)
        ax.set_title(setting.name, fontsize=9.5, loc="left", color=INK)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes.flat[-1].set_xlabel("learning rate")
    return figure


def _cell(ax: Axes, row: int, column: int, own: Runs) -> None:
    k = diverged(own)
    corner, colour = (column - 0.49, row - 0.46), SHARE(k / len(own))
    ax.add_patch(Rectangle(corner, 0.98, 0.92, color=colour, lw=0))
    steps = [r.diverged for r in own if r.diverged is not None]
    text = f"{k}/{len(own)}" + (f" at {np.median(steps):.0f}" if steps else "")
    ink = "white" if k == len(own) else INK
    ax.text(column, row, text, ha="center", va="center", fontsize=8, color=ink)


def growth(found: Found) -> Figure | None:
    """Draw zeta by steps before divergence, a line per seed, and the share of every event alone."""
    own = runs_of(found)
    if not own:
        return None
    figure, axes = canvas(3.6, 1, 2)
    left, right = axes[0]
    for name, label, colour in LINES:
        for i, r in enumerate(own):
            looks, end = before(r), min(r.time, r.steps)
            x, y = [step - end for step, _ in looks], [m[name] for _, m in looks]
            left.plot(x, y, color=colour, lw=1.1, alpha=0.75, label=None if i else label)
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
    looks = [[m for _, m in found] for r in own if (found := before(r))]
    there = [site for site in Site if f"zeta_{site}" in measures(own[0])[0][1]]
    value = {
        site: [float(np.median([m[f"zeta_{site}"] / m["zeta"] for m in each])) for each in looks]
        for site in there
    }
    order = sorted(
        (site for site in there if any(v > 0 for v in value[site])),
        key=lambda site: -float(np.median(value[site])),
    )
    for row, site in enumerate(order):
        x = value[site]
        ax.plot(x, [row] * len(x), "o", color=COLOURS[0], ms=4, alpha=0.7, mew=0)
    _names(ax, order, size=8.5)
    ax.set_xscale("log")
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_xlabel("zeta of one event alone / zeta of all")


def losses(found: Found) -> Figure | None:
    """Draw the loss of the base's formats at the base's rate, a line per seed; FP32 is grey."""
    formats = [f for f in found.scale.formats if f != EXACT]
    exact, drawn = found.base(EXACT), {f: own for f in formats if (own := found.base(f))}
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
