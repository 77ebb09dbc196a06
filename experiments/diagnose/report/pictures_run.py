"""Pictures of steps 1 and 2: losses of the run and its replays, the map of what must be exact, and survivors against controls."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from roundscope.attention import Site
from roundscope.experiments.diagnose.gpt.case import Case
from roundscope.experiments.diagnose.gpt.states import RunPart
from roundscope.experiments.diagnose.gpt.units import Unit
from roundscope.experiments.diagnose.replay.start import Replayed
from roundscope.experiments.diagnose.search.ddmin import Outcome
from roundscope.experiments.diagnose.search.guilty import Guilty
from roundscope.experiments.sweep.report.plots import canvas
from roundscope.experiments.trace.plots import BAND, DOWN, INK, QUIET, UP

EXACT, BEHIND, ROW = "#009e73", 150, 0.26


def losses(part: RunPart) -> Figure:
    """The log's loss, its replay, and the sanity arms; dotted: the alarm's limit and its step."""
    figure, axes = canvas(3.4)
    case, r, ax = part.case, part.replayed, axes[0, 0]
    first = 0 if r is None else max(0, r.own.first - BEHIND)
    shown = {n: x for n, x in case.losses.items() if n >= first and (r is None or n < case.until + BEHIND)}
    ax.plot(list(shown), list(shown.values()), color=BAND, lw=4, label="the run's log", zorder=1)
    if r is not None:
        _replays(ax, case, r, part.step)
    lines = [line for line in ax.lines if len(line.get_xdata()) > 2]  # those of the alarm are in other units
    values = [x for line in lines for x in np.asarray(line.get_ydata(), float) if np.isfinite(x) and x > 0.0]
    if values and max(values) > 8.0 * min(values):
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("step")
    ax.set_ylabel("loss, nats")
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5, frameon=False)
    return figure


def _replays(ax: Axes, case: Case, r: Replayed, looked: int) -> None:
    at = lambda first, x: np.arange(first, first + len(x))  # noqa: E731
    ax.plot(at(r.own.first, r.own.losses), r.own.losses, color=INK, lw=1.0, label="replayed, twice", zorder=4)
    last = r.sanity[-1]
    for outcome, colour, label in ((last.low, UP, "as it was, other last bits"), (last.exact, EXACT, "everything exact")):
        for i, fate in enumerate(outcome.fates):
            ax.plot(at(last.first, fate.losses), fate.losses, color=colour, lw=0.9, alpha=0.85, zorder=3, label=label if i == 0 else None)
    failure = case.failure
    assert failure is not None
    ax.axvline(failure.step, color=UP, lw=0.8, ls=":")
    ax.annotate(f" {failure.kind}", (failure.step, 0.99), xycoords=("data", "axes fraction"), fontsize=8.5, color=UP, va="top")
    if np.isfinite(failure.limit):
        ax.axhline(failure.limit, color=QUIET, lw=0.8, ls=":")
    ax.axvline(looked, color=DOWN, lw=0.8, ls=":")
    ax.annotate("steps 3 to 6 ", (looked, 0.99), xycoords=("data", "axes fraction"), fontsize=8.5, color=DOWN, va="top", ha="right")


def exact_map(g: Guilty) -> Figure:
    """Heads by events: what rounds low, and what of it must be exact."""
    places = sorted({u[:2] for u in g.all_units})
    sites = [s for s in Site if any(u.site is s for u in g.all_units)]
    figure, axes = canvas(1.1 + ROW * len(places))
    ax = axes[0, 0]
    for y, (layer, head) in enumerate(places):
        for x, site in enumerate(sites):
            unit = Unit(layer, head, site)
            if unit in g.all_units:
                ax.add_patch(_cell(x, y, UP if unit in g.found else BAND))
    wide = max(len(sites), 12)  # few events make no huge cells
    ax.set_xlim(-0.5, wide - 0.5)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_xticks(range(len(sites)), sites, rotation=0 if len(sites) <= 12 else 60, fontfamily="monospace", fontsize=8.5)
    ax.set_yticks(range(len(places)), [f"layer {i}, head {n}" for i, n in places], fontsize=8.5)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return figure


def _cell(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, color=colour, lw=0)


def survivors(r: Replayed, g: Guilty) -> Figure:
    """Every set that was replayed: when it failed, against how many events were exact."""
    figure, axes = canvas(3.2)
    ax, top = axes[0, 0], r.case.until + 0.08 * r.window.steps
    rng = np.random.Generator(np.random.Philox(key=3))
    controls, found = {o.units for o in g.controls}, [o for o in g.outcomes if o.units == g.found]
    kinds = {
        "other sets asked for": (QUIET, "o", 5, 0.12, [o for o in g.outcomes if o.units not in controls and o not in found]),
        "random sets of its size": (DOWN, "D", 6, 0.12, list(g.controls)), "the set found": (UP, "*", 14, 0.0, found),
    }  # fmt: skip
    for kind, (colour, marker, size, aside, own) in kinds.items():
        points = [(len(o.units) + rng.uniform(-aside, aside), _when(o, top)) for o in own]
        if points:
            ax.plot(*np.array(points).T, marker, color=colour, ms=size, alpha=0.75, mew=0, label=kind, ls="")
    ax.axhspan(r.case.until, top + 0.08 * r.window.steps, color=BAND, lw=0, zorder=0)
    ax.annotate("survives", (1.005, top), xycoords=("axes fraction", "data"), va="center", ha="left", fontsize=8.5, color=INK)
    ax.set_xlim(-0.6, len(g.all_units) + 0.6)
    ax.set_xlabel("events that are exact, counted by head")
    ax.set_ylabel("fails at step")
    figure.legend(loc="outside upper left", ncols=3, fontsize=8.5, frameon=False)
    return figure


def _when(o: Outcome, top: float) -> float:
    steps = [f.failed for f in o.fates if f.failed is not None]
    return top if o.survives else float(np.median(steps))
