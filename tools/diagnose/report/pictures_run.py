"""Pictures of steps 1 and 2 of any run.

They show losses of the log and of replays, the map of what must be exact, and survivors against
controls.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.tools.diagnose.replay.fate import Fate, Outcome
from roundscope.tools.diagnose.replay.start import Replayed
from roundscope.tools.diagnose.search.guilty import Guilty
from roundscope.tools.report.pictures import BAND, DOWN, INK, QUIET, UP, canvas

EXACT, BEHIND, ROW = "#009e73", 150, 0.26
Mark = tuple[int, str, str]  # step, colour, words


def losses(
    curve: Sequence[tuple[float, float]],
    r: Replayed | None,
    marks: Sequence[Mark] = (),
    limit: float = np.inf,
) -> Figure:
    """Draw the loss of the log (step, loss), its replay, and the sanity arms.

    Dotted lines are marked steps, and the alarm's limit.
    """
    figure, axes = canvas(3.4)
    ax = axes[0, 0]
    low, high = -np.inf, np.inf
    if r is not None:
        low = min(r.replayer.first, r.own.first or np.inf) - BEHIND
        high = r.replayer.until + BEHIND
    shown = np.array([(n, x) for n, x in curve if low <= n <= high])
    if shown.size:
        ax.plot(*shown.T, color=BAND, lw=4, label="the run's log", zorder=1)
    if r is not None:
        _replays(ax, r, max(low, r.own.first))
    lines = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    values = np.concatenate([y[np.isfinite(y) & (y > 0.0)] for y in lines] or [np.ones(1)])
    for step, colour, words in marks:
        ax.axvline(step, color=colour, lw=0.8, ls=":")
        ax.annotate(
            f" {words}",
            (step, 0.99),
            xycoords=("data", "axes fraction"),
            fontsize=8.5,
            color=colour,
            va="top",
        )
    if np.isfinite(limit):
        ax.axhline(limit, color=QUIET, lw=0.8, ls=":")
    if values.size and values.max() > 8.0 * values.min():
        logarithmic(ax, ax.yaxis, ax.set_yscale)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5, frameon=False)
    return figure


def _replays(ax: Axes, r: Replayed, low: float) -> None:
    own = r.own.losses[int(low) - r.own.first :]
    ax.plot(int(low) + np.arange(len(own)), own, color=INK, lw=1.0, label="replayed", zorder=4)
    for s in r.sanity[-1:]:
        for outcome, colour, label in (
            (s.low, UP, "as it was, other last bits"),
            (s.exact, EXACT, "everything exact"),
        ):
            for i, fate in enumerate(outcome.fates):
                x = s.first + np.arange(len(fate.losses))
                ax.plot(
                    x,
                    fate.losses,
                    color=colour,
                    lw=0.9,
                    alpha=0.85,
                    zorder=3,
                    label="" if i else label,
                )


def exact_map(g: Guilty) -> Figure:
    """Draw places by events: what rounds, and what of it must be exact."""
    places = sorted({u[:2] for u in g.all_units}, key=lambda p: (p[0], p[1] == "", p[1]))
    sites = [s for s in g.family.sites if any(u.site is s for u in g.all_units)]
    figure, axes = canvas(1.1 + ROW * len(places))
    ax = axes[0, 0]
    for unit in g.all_units:
        x, y = sites.index(unit.site), places.index(unit[:2])
        ax.add_patch(
            Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, color=UP if unit in g.found else BAND, lw=0)
        )
    ax.set_xlim(-0.5, max(len(sites), 12) - 0.5)  # few events make no huge cells
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_xticks(
        range(len(sites)),
        [str(s) for s in sites],
        rotation=0 if len(sites) <= 12 else 60,
        fontfamily="monospace",
        fontsize=8.5,
    )
    ax.set_yticks(range(len(places)), [g.family.row(p) for p in places], fontsize=8.5)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return figure


def survivors(r: Replayed, g: Guilty) -> Figure:
    """Draw every replay with a set exact: when it failed, by how many events were exact.

    Replays of the run as it was are among them.
    """
    figure, axes = canvas(3.2)
    ax, steps, top = axes[0, 0], r.replayer.steps, r.replayer.until + 0.08 * r.replayer.steps
    rng, aside = np.random.Generator(np.random.Philox(key=3)), 0.01 * len(g.all_units)
    controls = {o.units for o in g.controls}
    rest = [o for o in g.outcomes if o.units not in controls and o.units != g.found]
    best = [o for o in g.outcomes if o.units == g.found]
    if g.confirmed is not None:
        best.append(g.confirmed)

    def of(own: Sequence[Outcome]) -> list[tuple[int, Fate]]:
        return [(len(o.units), f) for o in own for f in o.fates]

    kinds: dict[str, tuple[str, str, int, list[tuple[int, Fate]]]] = {
        "as it was": (UP, ".", 7, [(0, f) for f in r.shams.fates]),
        "sets of the search": (QUIET, "o", 5, of(rest)),
        "random sets of its size": (DOWN, "D", 6, of(g.controls)),
        "the set found": (EXACT, "*", 12, of(best)),
    }
    for kind, (colour, marker, size, own) in kinds.items():
        at = [
            top + 0.05 * steps * rng.uniform(-1, 1) if f.failed is None else f.failed
            for _, f in own
        ]
        points = [(n + aside * rng.uniform(-1, 1), y) for (n, _), y in zip(own, at, strict=True)]
        if points:
            ax.plot(
                *np.array(points).T,
                marker,
                color=colour,
                ms=size,
                alpha=0.7,
                mew=0,
                label=kind,
                ls="",
            )
    ax.axhspan(r.replayer.until, top + 0.08 * steps, color=BAND, lw=0, zorder=0)
    ax.annotate(
        "survives",
        (1.005, top),
        xycoords=("axes fraction", "data"),
        va="center",
        ha="left",
        fontsize=8.5,
        color=INK,
    )
    ax.set_xlim(-0.03 * len(g.all_units) - 0.3, 1.03 * len(g.all_units) + 0.3)
    ax.set_xlabel("events that are exact, counted one by one")
    ax.set_ylabel("fails at step")
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5, frameon=False)
    return figure


def logarithmic(ax: Axes, axis: Any, scale: Any) -> None:
    """Make an axis logarithmic, with few numbers that do not touch."""
    scale("log")
    low, high = ax.get_ylim() if axis is ax.yaxis else ax.get_xlim()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100.0 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
