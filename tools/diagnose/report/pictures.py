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

LEGEND: dict[str, Any] = {"fontsize": 8.5, "frameon": False}
EFFECTS = {
    Effect.REMOVED: "#1b7837",
    Effect.REDUCED: "#b35806",
    Effect.LEFT: UP,
    Effect.GREW: UP,
    Effect.TURNED: "#762a83",
    Effect.MADE: UP,
}


def directions(found: Findings, *, narrow: bool = False) -> Figure:
    """Draw step 3: cosines of the factors by head, the leading direction's share, nulls."""
    figure, axes = canvas(5.2, 2, 1, sharex=True, narrow=narrow)
    top, bottom = axes[:, 0]

    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(c, name) for c in found.carriers])

    x = np.arange(join("pk").size)
    edges, flipped = np.append(x, x[-1] + 1) - 0.5, np.append(join("flipped_atoms"), 0.0)
    label = "atoms with flipped signs, 99 %"
    top.fill_between(edges, 0.0, flipped, step="post", color=QUIET, alpha=0.5, label=label)
    rows = ("q", f"rows of {read_by(found)}", QUIET, "s")
    series = (("pk", "rows of P K", DOWN, "o"), rows, ("atoms", "atoms", UP, "d"))
    for name, label, colour, marker in series:
        top.plot(x + 0.15 * (name == "q"), join(name), marker, color=colour, ms=5, label=label)
    top.axhline(0.0, color=INK, lw=0.6)
    top.set_ylabel("mean cosine, pairs of tokens")
    for name, label, colour, shift in (
        ("permuted", "tokens permuted", DOWN, -0.15),
        ("flipped", "signs flipped", QUIET, 0.15),
    ):
        low, middle, high = join(name).T
        style: Any = {"lw": 4, "alpha": 0.45, "label": f"{label}: 5 to 95 %"}
        bottom.vlines(x + shift, low, high, color=colour, **style)
        bottom.plot(x + shift, middle, "_", color=colour, ms=7)
    bottom.plot(x, join("share"), "D", color=UP, ms=5, label="sum of c atoms")
    bottom.set_ylabel(r"share of $\sigma_1^2$")
    bottom.set_ylim(0.0, 1.03)
    heads_below(found, (top, bottom))
    for ax in (top, bottom):
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
        ax.legend(**LEGEND, ncols=2 if narrow else 4, **place)
    return figure


def coherences(found: Findings, *, narrow: bool = False) -> Figure:
    """Draw step 4: every head's running sum in deviations of its whole sum, and A by head."""
    figure, axes = canvas(5.6, 2, 1, height_ratios=[1.6, 1], narrow=narrow)
    top, bottom = axes[:, 0]
    limit = threshold(found.coherence.tests)
    for i, c in enumerate(found.coherences):
        scale = np.sqrt((c.error**2).sum(1))
        sums = np.cumsum(c.error, axis=1) / np.where(scale > 0.0, scale, np.inf)[:, None]
        at = np.arange(1, sums.shape[1] + 1) / sums.shape[1]
        for head, line in enumerate(sums):
            style: dict[str, Any] = {"color": QUIET, "lw": 0.6, "alpha": 0.5, "zorder": 1}
            if i == found.chosen and head == found.head:
                style = {"color": UP, "lw": 1.6, "zorder": 3, "label": found.where}
            top.plot(at, line, **style)
    at = np.linspace(0.0, 1.0, 200)
    half, label = 1.96 * np.sqrt(at), "random signs, 95 %"
    top.fill_between(at, -half, half, color=BAND, zorder=0, label=label)
    top.axhline(0.0, color=INK, lw=0.6)
    top.set_xlim(0.0, 1.0)
    top.set_xlabel("tokens, from the first to the last")
    top.set_ylabel("running sum of delta's error,\nin standard deviations of random signs")
    top.legend(**LEGEND, loc="upper left", ncols=1 if narrow else 2)
    a = np.concatenate([c.a for c in found.coherences])
    biased = np.concatenate([c.p < c.level for c in found.coherences])
    bottom.bar(np.arange(a.size), a, color=np.where(biased, UP, QUIET), width=0.7)
    label = f"any of {found.coherence.tests} heads exceeds {limit:.1f} once in 100 times"
    bottom.axhline(limit, color=INK, lw=0.8, ls=":", label=label)
    bottom.set_ylim(0.0, 1.22 * max(float(a.max(initial=0.0)), limit))
    bottom.set_ylabel("A")
    bottom.legend(**LEGEND, loc="upper right")
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
        colour, b = INK if o is found.base else EFFECTS.get(found.effect(o), QUIET), o.after
        sides = [[b.mean - b.low], [b.high - b.mean]]
        ax.errorbar(b.mean, at, xerr=sides, fmt="o", color=colour, capsize=3, ms=6)
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
    layers = "head of " + " | ".join(m.layer.name for m in found.measured)
    axes[-1].set_xlabel(layers if len(found.measured) <= 8 else "head, layer after layer")


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


def features(found: Findings, *, narrow: bool = False) -> Figure:
    """Draw the mean of dO (O - O exact) by feature, and running sums by kind of row."""
    o = found.origin
    figure, axes = canvas(3.0, 1, 2, width_ratios=[1.15, 1], narrow=narrow)
    left, right = axes[0]
    x, tokens = o.features, o.features.shape[0]
    band = threshold(x.shape[1]) * np.sqrt((x**2).sum(0)) / tokens
    at, means = np.arange(x.shape[1]), x.mean(0)
    left.bar(at, 2 * band, bottom=-band, width=1.0, color=BAND, label="random signs")
    colours = np.where(np.abs(means) > band, np.where(means > 0, UP, DOWN), QUIET)
    left.bar(at, means, width=0.6, color=colours)
    left.axhline(0.0, color=INK, lw=0.6)
    left.set_xlabel("feature i")
    left.set_ylabel("mean over tokens of\ndO (O - O exact)")
    left.legend(**LEGEND)
    row = x.sum(1)
    for chosen, colour, label in ((o.several, UP, "several P = 1"), (~o.several, QUIET, "others")):
        sums, name = np.cumsum(np.where(chosen, row, 0.0)), f"{label}: {int(chosen.sum())} rows"
        right.plot(sums, color=colour, lw=1.4, label=name)
    right.axhline(0.0, color=INK, lw=0.6)
    right.set_xlabel("token")
    right.set_ylabel("running sum, by kind of row")
    right.legend(**LEGEND, loc="best")
    return figure


def classes(found: Findings) -> Figure | None:
    """Draw each class of inexact roundings of the output, and its part in delta's error."""
    shown = [c for c in found.origin.classes if c.events[EXACT + 1 :].any()]
    if not shown:
        return None
    rows, widths = len(shown), [1, 1.25]
    figure, axes = canvas(0.7 + 1.55 * rows, rows, 2, sharex="col", width_ratios=widths)
    for (left, right), c in zip(axes, shown, strict=True):
        _class_rows(left, right, c)
    axes[-1, 0].set_xlabel("share of the inexact events")
    axes[-1, 1].set_xlabel("contribution to delta's mean error per token")
    return figure


def _class_rows(left: Axes, right: Axes, c: Classes) -> None:
    names, y = CLASSES[EXACT + 1 :], np.arange(len(CLASSES) - 1)[::-1]
    events, bias, ones = (x[EXACT + 1 :] for x in (c.events, c.bias, c.ones_bias))
    red = (TIE, STICKY) if c.to_nearest else ()
    colours = [UP if k in red else QUIET for k in range(EXACT + 1, len(CLASSES))]
    left.barh(y, events / max(events.sum(), 1), color=colours, height=0.65)
    left.set_yticks(y, names)
    inexact = f"{c.site}: {int(events.sum())} of {int(c.events.sum())} inexact"
    left.set_title(inexact, fontsize=9.5, loc="left")
    right.barh(y, bias, color=colours, height=0.65)
    right.barh(y, ones, color="none", edgecolor=INK, lw=0.8, height=0.65)
    right.axvline(0.0, color=INK, lw=0.6)
    right.set_yticks([])
    parts = f"{c.site}: in all {c.total:+.2g}; framed: rows with several P = 1"
    right.set_title(parts, fontsize=9.5, loc="left")


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
        _replays(ax, r, int(max(low, r.own.first)))
    lines = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    values = np.concatenate([y[np.isfinite(y) & (y > 0.0)] for y in lines] or [np.ones(1)])
    for step, colour, words in marks:
        ax.axvline(step, color=colour, lw=0.8, ls=":")
        style: Any = {"xycoords": ("data", "axes fraction"), "fontsize": 8.5, "va": "top"}
        ax.annotate(f" {words}", (step, 0.99), color=colour, **style)
    if np.isfinite(limit):
        ax.axhline(limit, color=QUIET, lw=0.8, ls=":")
    if values.size and values.max() > 8.0 * values.min():
        logarithmic(ax.yaxis)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    figure.legend(loc="outside upper left", ncols=4, **LEGEND)
    return figure


def _replays(ax: Axes, r: Replayed, start: int) -> None:
    own = r.own.losses[start - r.own.first :]
    ax.plot(start + np.arange(len(own)), own, color=INK, lw=1.0, label="replayed", zorder=4)
    for s in r.sanity[-1:]:
        low = s.low, UP, "as it was, other last bits"
        for outcome, colour, label in (low, (s.exact, LIFTED, "everything exact")):
            style: dict[str, Any] = {"color": colour, "lw": 0.9, "alpha": 0.85, "zorder": 3}
            for i, fate in enumerate(outcome.fates):
                x = s.first + np.arange(len(fate.losses))
                ax.plot(x, fate.losses, label="" if i else label, **style)


def exact_map(g: Guilty) -> Figure:
    """Draw places by events: what rounds, and what of it must be exact."""
    places = sorted({u[:2] for u in g.all_units}, key=lambda p: (p[0], p[1] == "", p[1]))
    sites = [s for s in g.family.sites if any(u.site is s for u in g.all_units)]
    figure, axes = canvas(1.1 + ROW * len(places))
    ax = axes[0, 0]
    for unit in g.all_units:
        x, y = sites.index(unit.site), places.index(unit[:2])
        colour = UP if unit in g.found else BAND
        ax.add_patch(Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, color=colour, lw=0))
    ax.set_xlim(-0.5, max(len(sites), 12) - 0.5)  # few events make no huge cells
    ax.set_ylim(len(places) - 0.5, -0.5)
    letters: Any = {"fontfamily": "monospace", "fontsize": 8.5}
    turned = 0 if len(sites) <= 12 else 60
    ax.set_xticks(range(len(sites)), [str(s) for s in sites], rotation=turned, **letters)
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
        x = [n + aside * rng.uniform(-1, 1) for n, _ in own]
        if own:
            style: dict[str, Any] = {"ls": "", "ms": size, "alpha": 0.7, "mew": 0}
            ax.plot(x, at, marker, color=colour, label=kind, **style)
    ax.axhspan(r.replayer.until, top + 0.08 * steps, color=BAND, lw=0, zorder=0)
    _beside(ax, top, "survives", color=INK)
    ax.set_xlim(-0.03 * len(g.all_units) - 0.3, 1.03 * len(g.all_units) + 0.3)
    ax.set_xlabel("events that are exact, counted one by one")
    ax.set_ylabel("fails at step")
    figure.legend(loc="outside upper left", ncols=4, **LEGEND)
    return figure
