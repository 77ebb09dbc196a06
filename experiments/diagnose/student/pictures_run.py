"""Pictures of steps 1 and 2 of a proxy's diagnosis: losses, what must be exact, and which replays survive."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.experiments.diagnose.gpt.replay import Fate
from roundscope.experiments.diagnose.report.pictures_run import EXACT
from roundscope.experiments.diagnose.search.guilty import Guilty
from roundscope.experiments.diagnose.student.run import Found
from roundscope.experiments.diagnose.student.units import BESIDE, Unit
from roundscope.experiments.sweep.report.plots import canvas
from roundscope.experiments.trace.plots import BAND, DOWN, INK, QUIET, UP
from roundscope.experiments.train.student.sites import Site

BEHIND = 150


def losses(found: Found) -> Figure:
    """The file's curve, the replay, and the sanity arms."""
    figure, axes = canvas(3.4)
    case, r, ax = found.case, found.replayed, axes[0, 0]
    last = r.sanity[-1]
    low = max(0, last.first - BEHIND)
    curve = np.array([(step, loss) for step, loss, _ in case.row.curve if low <= step <= case.until and loss > 0.0])
    if curve.size:
        ax.plot(*curve.T, color=BAND, lw=5, label="the file: largest loss of 25 steps", zorder=1)
    ax.plot(np.arange(low, len(r.own.losses)), r.own.losses[low:, 0], color=INK, lw=1.0, label="replayed, twice", zorder=4)
    for outcome, colour, label in ((last.low, UP, "as it was, other last bits"), (last.exact, EXACT, "everything FP32")):
        for i, fate in enumerate(outcome.fates):
            x = last.first + np.arange(len(fate.losses))
            ax.plot(x, fate.losses, color=colour, lw=0.9, alpha=0.85, label="" if i else label, zorder=3)
    for step, colour, text in ((case.failed, UP, "diverged"), (last.first, DOWN, "replays begin")):
        ax.axvline(step, color=colour, lw=0.8, ls=":")
        ax.annotate(f" {text}", (step, 0.99), xycoords=("data", "axes fraction"), fontsize=8.5, color=colour, va="top")
    logarithmic(ax, ax.yaxis, ax.set_yscale)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5, frameon=False)
    return figure


def exact_map(g: Guilty) -> Figure:
    """Layers and matrices by events: what rounds, and what of it must be exact."""
    places = sorted({u[:2] for u in g.all_units}, key=lambda p: (p[0], p[1] == BESIDE, p[1]))
    sites = [s for s in Site if any(u.site is s for u in g.all_units)]
    figure, axes = canvas(1.0 + 0.22 * len(places))
    ax = axes[0, 0]
    for y, (layer, matrix) in enumerate(places):
        for x, site in enumerate(sites):
            unit = Unit(layer, matrix, site)
            if unit in g.all_units:
                ax.plot(x, y, "s", color=UP if unit in g.found else BAND, ms=11, mew=0)
    ax.set_xlim(-0.6, max(len(sites), 10) - 0.4)
    ax.set_ylim(len(places) - 0.4, -0.6)
    ax.set_xticks(range(len(sites)), [str(s) for s in sites], fontfamily="monospace", fontsize=8.5)
    ax.set_yticks(range(len(places)), [f"layer {i}{f', {m}' if m else ', beside'}" for i, m in places], fontsize=8.5)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return figure


def survivors(found: Found) -> Figure:
    """When replays diverge, against how many events were exact; shams among them."""
    r, g = found.replayed, found.replayed.guilty
    assert g is not None
    figure, axes = canvas(3.2)
    ax, top, steps = axes[0, 0], found.case.until + 0.08 * r.replayer.steps, r.replayer.steps
    rng, aside = np.random.Generator(np.random.Philox(key=3)), 0.01 * len(g.all_units)
    controls = {o.units for o in g.controls}
    rest = [o for o in g.outcomes if o.units not in controls and o.units != g.found]
    alone: list[tuple[int, Fate]] = [(0, f) for f in r.shams.fates]
    found_again = [] if g.confirmed is None else [g.confirmed]
    best = [(len(g.found), f) for o in (*g.outcomes, *found_again) if o.units == g.found for f in o.fates]
    kinds = {
        "shams: nothing exact": (UP, ".", 7, alone), "sets asked for": (QUIET, "o", 5, [(len(o.units), f) for o in rest for f in o.fates]),
        "random sets": (DOWN, "D", 6, [(len(o.units), f) for o in g.controls for f in o.fates]), "the set found": (EXACT, "*", 12, best),
    }  # fmt: skip
    for kind, (colour, marker, size, own) in kinds.items():
        at = [top + 0.05 * steps * rng.uniform(-1, 1) if f.failed is None else f.failed for _, f in own]
        points = [(n + aside * rng.uniform(-1, 1), y) for (n, _), y in zip(own, at, strict=True)]
        if points:
            ax.plot(*np.array(points).T, marker, color=colour, ms=size, alpha=0.7, mew=0, label=kind, ls="")
    ax.axhspan(found.case.until, top + 0.08 * steps, color=BAND, lw=0, zorder=0)
    ax.annotate("survives", (1.005, top), xycoords=("axes fraction", "data"), va="center", ha="left", fontsize=8.5, color=INK)
    ax.set_xlim(-0.03 * len(g.all_units), 1.03 * len(g.all_units))
    ax.set_xlabel("events that are exact")
    ax.set_ylabel("diverges at step")
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5, frameon=False)
    return figure


def logarithmic(ax: Axes, axis: Any, scale: Any) -> None:
    """A logarithmic axis with few numbers that do not touch."""
    scale("log")
    low, high = ax.get_ylim() if axis is ax.yaxis else ax.get_xlim()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100.0 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
