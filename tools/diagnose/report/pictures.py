"""The pictures of a diagnosis.

Of steps 3 to 6: directions, running sums, accounts, features, classes, repairs. Of steps 1 and 2 of
any run: losses of log and replays, the map of what must be exact, survivors against controls.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from roundscope.tools.diagnose.replay.replayer import Fate, Outcome
from roundscope.tools.diagnose.replay.start import Replayed
from roundscope.tools.diagnose.report.words import read_by
from roundscope.tools.diagnose.search import Guilty
from roundscope.tools.diagnose.tensors.findings import Findings
from roundscope.tools.diagnose.tensors.origin import CLASSES, EXACT, STICKY, TIE, Classes
from roundscope.tools.diagnose.tensors.verdict import Effect
from roundscope.tools.report.pictures import BAND, DOWN, INK, QUIET, UP, canvas, logarithmic
from roundscope.tools.trace.analysis.bias import threshold

EFFECTS = {
    Effect.REMOVED: "#1b7837",
    Effect.REDUCED: "#b35806",
    Effect.LEFT: UP,
    Effect.GREW: UP,
    Effect.TURNED: "#762a83",
    Effect.MADE: UP,
}


def directions(found: Findings) -> Figure:
    """Draw step 3: cosines of the factors by head, the leading direction's share, nulls."""
    figure, axes = canvas(5.2, 2, 1, sharex=True)
    top, bottom = axes[:, 0]

    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(c, name) for c in found.carriers])

    x = np.arange(join("pk").size)
    top.fill_between(
        np.append(x, x[-1] + 1) - 0.5,
        0.0,
        np.append(join("flipped_atoms"), 0.0),
        step="post",
        color=QUIET,
        alpha=0.5,
        label="atoms with flipped signs, 99 %",
    )
    rows = f"rows of {read_by(found)}"
    for name, label, colour, marker in (
        ("pk", "rows of P K", DOWN, "o"),
        ("q", rows, QUIET, "s"),
        ("atoms", "atoms", UP, "d"),
    ):
        top.plot(x + 0.15 * (name == "q"), join(name), marker, color=colour, ms=5, label=label)
    top.axhline(0.0, color=INK, lw=0.6)
    top.set_ylabel("mean cosine, pairs of tokens")
    for name, label, colour, shift in (
        ("permuted", "tokens permuted", DOWN, -0.15),
        ("flipped", "signs flipped", QUIET, 0.15),
    ):
        low, middle, high = join(name).T
        bottom.vlines(
            x + shift, low, high, color=colour, lw=4, alpha=0.45, label=f"{label}: 5 to 95 %"
        )
        bottom.plot(x + shift, middle, "_", color=colour, ms=7)
    bottom.plot(x, join("share"), "D", color=UP, ms=5, label="sum of c atoms")
    bottom.set_ylabel(r"share of $\sigma_1^2$")
    bottom.set_ylim(0.0, 1.03)
    heads_below(found, (top, bottom))
    for ax in (top, bottom):
        ax.legend(
            fontsize=8.5,
            frameon=False,
            ncols=4,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.2,
        )
    return figure


def coherences(found: Findings) -> Figure:
    """Draw step 4: every head's running sum in deviations of its whole sum, and A by head."""
    figure, axes = canvas(5.6, 2, 1, height_ratios=[1.6, 1])
    top, bottom = axes[:, 0]
    limit = threshold(found.coherence.tests)
    for i, c in enumerate(found.coherences):
        scale = np.sqrt((c.error**2).sum(1))
        sums = np.cumsum(c.error, axis=1) / np.where(scale > 0.0, scale, np.inf)[:, None]
        at = np.arange(1, sums.shape[1] + 1) / sums.shape[1]
        for head, line in enumerate(sums):
            looked = i == found.chosen and head == found.head
            top.plot(
                at,
                line,
                color=UP if looked else QUIET,
                lw=1.6 if looked else 0.6,
                alpha=1.0 if looked else 0.5,
                zorder=3 if looked else 1,
                label=found.where if looked else None,
            )
    at = np.linspace(0.0, 1.0, 200)
    top.fill_between(
        at,
        -1.96 * np.sqrt(at),
        1.96 * np.sqrt(at),
        color=BAND,
        zorder=0,
        label="random signs, 95 %",
    )
    top.axhline(0.0, color=INK, lw=0.6)
    top.set_xlim(0.0, 1.0)
    top.set_xlabel("tokens, from the first to the last")
    top.set_ylabel("running sum of delta's error,\nin standard deviations of random signs")
    top.legend(fontsize=8.5, frameon=False, loc="upper left", ncols=2)
    a = np.concatenate([c.a for c in found.coherences])
    biased = np.concatenate([c.p < c.level for c in found.coherences])
    bottom.bar(np.arange(a.size), a, color=np.where(biased, UP, QUIET), width=0.7)
    bottom.axhline(
        limit,
        color=INK,
        lw=0.8,
        ls=":",
        label=f"any of {found.coherence.tests} heads exceeds {limit:.1f} once in 100 times",
    )
    bottom.set_ylim(0.0, 1.22 * max(float(a.max(initial=0.0)), limit))
    bottom.set_ylabel("A")
    bottom.legend(fontsize=8.5, frameon=False, loc="upper right")
    heads_below(found, (bottom,))
    return figure


def repairs(found: Findings) -> Figure:
    """Draw step 6: the bias under every arm with its interval."""
    arms = [found.base, *found.outcomes]
    figure, axes = canvas(0.9 + 0.36 * len(arms))
    ax, y = axes[0, 0], np.arange(len(arms))[::-1]
    before = found.base.after
    ax.axvspan(before.low, before.high, color=BAND, zorder=0, label="before, 95 %")
    ax.axvline(0.0, color=INK, lw=0.8)
    for at, o in zip(y, arms, strict=True):
        colour = INK if o is found.base else EFFECTS.get(found.effect(o), QUIET)
        ax.errorbar(
            o.after.mean,
            at,
            xerr=[[o.after.mean - o.after.low], [o.after.high - o.after.mean]],
            fmt="o",
            color=colour,
            capsize=3,
            ms=6,
        )
    reach = np.array([[min(o.after.low, 0.0), max(o.after.high, 0.0)] for o in arms])
    reach = np.where(np.isfinite(reach), reach, 0.0)  # a repair may give NaN
    size = 1.6 * float(np.median(np.abs(reach).max(1)))
    bound = max(size, 1.4 * max(abs(before.low), abs(before.high)))
    if reach.any():
        ax.set_xlim(max(reach[:, 0].min() * 1.05, -bound), min(reach[:, 1].max() * 1.05, bound))
    for at, o in zip(y, arms, strict=True):
        said = f"A = {o.after.a:.1f}" + ("" if o is found.base else f", {found.effect(o)}")
        _beside(ax, at, said, color=INK)
    ax.set_yticks(y, [o.arm.name for o in arms])
    ax.set_ylim(-0.6, len(arms) - 0.4)
    ax.set_xlabel(f"mean error of delta per token, 95 % interval   ({found.where})")
    return figure


def _beside(ax: Axes, at: float, text: str, **style: Any) -> None:
    place = (1.01, at), ("axes fraction", "data")
    ax.annotate(text, place[0], xycoords=place[1], va="center", fontsize=8.5, **style)


def heads_below(found: Findings, axes: tuple[Any, ...]) -> None:
    """Write the heads along the x axis, layer after layer, with the layers' names."""
    names = [name for m in found.measured for name in m.heads]
    edges = np.cumsum([0, *(len(m.heads) for m in found.measured)]) - 0.5
    step = max(1, len(names) // 32)
    for ax in axes:
        ax.set_xlim(-0.6, len(names) - 0.4)
        for edge in edges[1:-1]:
            ax.axvline(edge, color=INK, lw=0.6)
    axes[-1].set_xticks(range(0, len(names), step), names[::step])
    wide = len(found.measured) <= 8
    axes[-1].set_xlabel(
        "head of " + " | ".join(m.layer.name for m in found.measured)
        if wide
        else "head, layer after layer"
    )


def accounts(found: Findings) -> Figure:
    """Draw the bias of delta and its parts, with intervals."""
    o = found.origin
    named = {"delta, in all": o.total} | o.accounts
    figure, axes = canvas(0.9 + 0.3 * len(named))
    ax, y = axes[0, 0], np.arange(len(named))[::-1]
    for at, (name, b) in zip(y, named.items(), strict=True):
        colour = INK if b is o.total else UP if name in o.origins else QUIET
        ax.barh(at, b.mean, height=0.62, color=colour, alpha=0.85)
        ax.plot([b.low, b.high], [at, at], color=INK, lw=1.0)
        if b is not o.total and abs(o.share(name)) >= 5e-3:
            _beside(ax, at, f"{100 * o.share(name):+.0f} %")
    ax.axvline(0.0, color=INK, lw=0.8)
    ax.set_yticks(y, list(named), fontfamily="monospace")
    ax.set_xlabel(f"mean error of delta per token, 95 % interval   ({found.where})")
    return figure


def features(found: Findings) -> Figure:
    """Draw the mean of dO (O - O exact) by feature, and running sums by kind of row."""
    o = found.origin
    figure, axes = canvas(3.0, 1, 2, width_ratios=[1.15, 1])
    left, right = axes[0]
    x, tokens = o.features, o.features.shape[0]
    band = threshold(x.shape[1]) * np.sqrt((x**2).sum(0)) / tokens
    at, means = np.arange(x.shape[1]), x.mean(0)
    left.bar(at, 2 * band, bottom=-band, width=1.0, color=BAND, label="random signs")
    left.bar(
        at,
        means,
        width=0.6,
        color=np.where(np.abs(means) > band, np.where(means > 0, UP, DOWN), QUIET),
    )
    left.axhline(0.0, color=INK, lw=0.6)
    left.set_xlabel("feature i")
    left.set_ylabel("mean over tokens of\ndO (O - O exact)")
    left.legend(fontsize=8.5, frameon=False)
    row = x.sum(1)
    for chosen, colour, label in ((o.several, UP, "several P = 1"), (~o.several, QUIET, "others")):
        right.plot(
            np.cumsum(np.where(chosen, row, 0.0)),
            color=colour,
            lw=1.4,
            label=f"{label}: {int(chosen.sum())} rows",
        )
    right.axhline(0.0, color=INK, lw=0.6)
    right.set_xlabel("token")
    right.set_ylabel("running sum, by kind of row")
    right.legend(fontsize=8.5, frameon=False, loc="best")
    return figure


def classes(found: Findings) -> Figure | None:
    """Draw each class of inexact roundings of the output, and its part in delta's error."""
    shown = [c for c in found.origin.classes if c.events[EXACT + 1 :].any()]
    if not shown:
        return None
    figure, axes = canvas(
        0.7 + 1.55 * len(shown), len(shown), 2, sharex="col", width_ratios=[1, 1.25]
    )
    for (left, right), c in zip(axes, shown, strict=True):
        _class_rows(left, right, c)
    axes[-1, 0].set_xlabel("share of the inexact events")
    axes[-1, 1].set_xlabel("contribution to delta's mean error per token")
    return figure


def _class_rows(left: Axes, right: Axes, c: Classes) -> None:
    names, y = CLASSES[EXACT + 1 :], np.arange(len(CLASSES) - 1)[::-1]
    events, bias, ones = (x[EXACT + 1 :] for x in (c.events, c.bias, c.ones_bias))
    colours = [
        UP if c.to_nearest and k in (TIE, STICKY) else QUIET for k in range(EXACT + 1, len(CLASSES))
    ]
    left.barh(y, events / max(events.sum(), 1), color=colours, height=0.65)
    left.set_yticks(y, names)
    left.set_title(
        f"{c.site}: {int(events.sum())} of {int(c.events.sum())} inexact", fontsize=9.5, loc="left"
    )
    right.barh(y, bias, color=colours, height=0.65)
    right.barh(y, ones, color="none", edgecolor=INK, lw=0.8, height=0.65)
    right.axvline(0.0, color=INK, lw=0.6)
    right.set_yticks([])
    right.set_title(
        f"{c.site}: in all {c.total:+.2g}; framed: rows with several P = 1",
        fontsize=9.5,
        loc="left",
    )


LIFTED = "#009e73"  # what is exact
BEHIND, ROW = 150, 0.26
Mark = tuple[int, str, str]  # step, colour, words


def losses(
    curve: Sequence[tuple[float, float]],
    r: Replayed | None,
    marks: Sequence[Mark] = (),
    limit: float = np.inf,
) -> Figure:
    """Draw the log's loss, its replay and the sanity arms; dotted: marks, the alarm's limit."""
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
        logarithmic(ax.yaxis)
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
            (s.exact, LIFTED, "everything exact"),
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
    """Draw when every replay failed, by how many events were exact (as it was: none)."""
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
        "the set found": (LIFTED, "*", 12, of(best)),
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
