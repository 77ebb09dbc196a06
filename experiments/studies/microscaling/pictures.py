"""The pictures: how interventions end, where settings fail, and the losses."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.studies.framework.drawing import CALM, LETHAL
from roundscope.experiments.studies.microscaling.arms import SHAM
from roundscope.experiments.studies.microscaling.found import Found
from roundscope.experiments.studies.microscaling.judging import diverged, when
from roundscope.experiments.studies.microscaling.outcomes import Effect, outcomes
from roundscope.experiments.studies.microscaling.scale import Scale
from roundscope.experiments.studies.proxy.studies import UNCHANGED
from roundscope.experiments.sweep.report.plots import COLOURS, canvas
from roundscope.experiments.trace.plots import INK, QUIET
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import Result

COLOUR = {Effect.AVERTED: CALM, Effect.DELAYED: COLOURS[2], Effect.HASTENED: LETHAL, Effect.NONE: QUIET}
SHAMS = f"{SHAM}s: half an ulp in one step"


def opening(found: Found, scale: Scale) -> Figure | None:
    """Arms x seeds by lead: steps from the parting to divergence; None without interventions."""
    leads = [lead for lead in scale.leads if any(at == lead for _, at in found.parted)]
    if not leads:
        return None
    names = list(dict.fromkeys(n for runs in found.parted.values() for n in runs if not n.startswith(SHAM)))
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
    own = {seed: runs for (seed, at), runs in found.parted.items() if at == lead}
    widest = 0.0
    starts = {seed: _start(runs.values()) for seed, runs in own.items()}
    for row, line in enumerate(lines):
        ax.axhline(row, color="#e4e7eb", lw=0.8, zorder=0)
        if line in words:
            ax.axhspan(row - 0.45, row + 0.45, color=COLOUR[words[line]], alpha=0.0 if words[line] is Effect.NONE else 0.13, lw=0)
        for i, (seed, runs) in enumerate(own.items()):
            several = [r for n, r in runs.items() if n.startswith(SHAM)] if line == SHAMS else [runs[line]] if line in runs else []
            for r in several:
                y = row + 0.5 * ((i + 0.5) / len(own) - 0.5)
                widest = max(widest, _dot(ax, r, starts[seed], y))
    ax.set_xlim(-0.02 * widest, 1.06 * widest)
    ax.axvline(lead, color=INK, lw=0.7, ls=":")
    ax.tick_params(axis="y", length=0)


def _dot(ax: Axes, r: Result, start: int, y: float) -> float:
    """A run by its steps since the parting; the number that was drawn."""
    lived = math.isinf(when(r))
    x = (r.steps if lived else when(r)) - start
    ax.plot(x, y, "o", color=CALM if lived else LETHAL, ms=4.2, mfc="white" if lived else None, alpha=0.85, mew=0.9 if lived else 0)
    return float(x)


def _start(runs: Iterable[Result]) -> int:
    """The step at which the arms of a seed left the base."""
    return min(first for r in runs for first, _ in r.arm.changes if first)


def formats(found: Found, scale: Scale) -> Figure | None:
    """Formats x rates of the base and of the other settings: the share of runs that diverged."""
    settings = [s for s in scale.settings if any(name == s.name for name, _ in found.trained)]
    if not settings:
        return None
    deep = [sum(name == s.name for name, _ in found.trained) for s in settings]
    figure, axes = canvas(0.5 + 0.26 * sum(deep) + 0.52 * len(settings), len(settings), 1, gridspec_kw={"height_ratios": deep})
    for ax, setting in zip(axes.flat, settings, strict=True):
        names = [f for name, f in found.trained if name == setting.name]
        for row, name in enumerate(names):
            for column, rate in enumerate(setting.rates):
                if own := found.of(setting.name, name, rate):
                    _cell(ax, row, column, own)
        ax.set_yticks(range(len(names)), names, fontsize=8.5)
        ax.set_xticks(range(len(setting.rates)), [f"{rate:g}" for rate in setting.rates], fontsize=8.5)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlim(-0.5, max(3, *(len(s.rates) for s in settings)) - 0.5)
        ax.set_title(setting.name, fontsize=9.5, loc="left", color=INK)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes.flat[-1].set_xlabel("learning rate")
    return figure


def _cell(ax: Axes, row: int, column: int, own: Sequence[Result]) -> None:
    from matplotlib.patches import Rectangle

    from roundscope.experiments.studies.framework.drawing import SHARE

    k = diverged(own)
    ax.add_patch(Rectangle((column - 0.49, row - 0.46), 0.98, 0.92, color=SHARE(k / len(own)), lw=0))
    steps = sorted(r.diverged for r in own if r.diverged is not None)
    text = f"{k}/{len(own)}" + (f" at {steps[len(steps) // 2]}" if steps else "")
    ax.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if k > 0.8 * len(own) else INK)


def losses(found: Found, scale: Scale) -> Figure | None:
    """The loss of the base's formats at the base's rate, a line per seed, FP32's in grey."""
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
            seen = np.array([(step, loss) for step, loss, _ in r.curve if math.isfinite(loss)])
            ax.plot(seen[:, 0], seen[:, 1], color=QUIET if r.arm.name == EXACT else COLOURS[0], lw=0.9, alpha=0.8)
        ax.set_title(name, fontsize=9, loc="left")
        ax.set_yscale("log")
    for ax in list(axes.flat)[len(drawn) :]:
        ax.axis("off")
    for ax in axes[-1]:
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("loss")
    return figure
