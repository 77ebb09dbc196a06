"""The picture of the gradient's error on the way to a divergence, and of the events that make it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.experiments.studies.microscaling.claims_epsilon import before, runs_of
from roundscope.experiments.studies.microscaling.found import Found
from roundscope.experiments.studies.microscaling.scale import Scale
from roundscope.experiments.sweep.report.plots import COLOURS, canvas
from roundscope.experiments.train.student.results import Result

LINES = (("zeta", "same state", COLOURS[0]), ("zeta_rceil", "same state, RCEIL", COLOURS[2]), ("zeta_apart", "two trainings", COLOURS[1]))


def growth(found: Found, scale: Scale) -> Figure | None:
    """zeta by steps before divergence, a line per seed; and what share of it each event has alone."""
    own = runs_of(found)
    if not own:
        return None
    figure, axes = canvas(3.6, 1, 2)
    left, right = axes[0]
    for name, label, colour in LINES:
        for i, r in enumerate(own):
            looks = before(r)
            end = r.steps if r.diverged is None else r.diverged
            left.plot([step - end for step, _ in looks], [m[name] for _, m in looks], color=colour, lw=1.1, alpha=0.75,
                      label=label if i == 0 else None)  # fmt: skip
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("steps to divergence")
    left.set_ylabel("zeta = |epsilon| / |g|")
    left.legend(fontsize=8.5, frameon=False)
    _events(right, own)
    return figure


def _events(ax: Axes, own: Sequence[Result]) -> None:
    names = [n for n in own[0].measures[0][1] if n.startswith("zeta_") and n.removeprefix("zeta_") not in ("rceil", "apart")]
    value = {n: [float(np.median([m[n] / m["zeta"] for _, m in looks])) for r in own if (looks := before(r))] for n in names}
    order = sorted((n for n in names if any(v > 0 for v in value[n])), key=lambda n: -float(np.median(value[n])))
    for row, n in enumerate(order):
        ax.plot(value[n], [row] * len(value[n]), "o", color=COLOURS[0], ms=4, alpha=0.7, mew=0)
    ax.set_yticks(range(len(order)), [n.removeprefix("zeta_") for n in order], fontsize=8.5)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xscale("log")
    ax.grid(axis="y", color="#e4e7eb", lw=0.6)
    ax.set_xlabel("zeta of one event alone / zeta of all")
