"""The pictures of the low-bit study: a table of recipes and cures, and losses with intervals."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.estimates import mean
from roundscope.experiments.framework.figures.series import SHARE, legend
from roundscope.experiments.questions.lowbit.comparisons import (
    MARGIN,
    TITLES,
    above_bf16,
    is_calm,
    rates,
    recipes,
)
from roundscope.experiments.questions.lowbit.recipes import (
    BF16,
    BOTH,
    BOTH_OF_P,
    CENTRED,
    CENTRED_HIGH,
    CENTRED_MATCHED,
    CURES,
    HIGH,
    MATCHED,
    NONE,
    OWN_HIGH,
    ROWS,
    ROWS_MATCHED,
    SIGNS,
    SIGNS_MATCHED,
)
from roundscope.experiments.questions.lowbit.trainings import Results
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas

SHOWN = {  # the cures of the picture and their headings
    NONE: "none",
    HIGH: "dS high",
    ROWS: "sham\nrows",
    SIGNS: "sham\nsigns",
    CENTRED: "centered",
    CENTRED_HIGH: "centered\ndS high",
    OWN_HIGH: "centered\ndS high\nown L",
    MATCHED: "matched",
    BOTH: "matched\ndS high",
    ROWS_MATCHED: "matched\nsham\nrows",
    SIGNS_MATCHED: "matched\nsham\nsigns",
    CENTRED_MATCHED: "matched\ncentered",
    BOTH_OF_P: "matched\ndS high\nO of P",
}
GAP = LinearSegmentedColormap.from_list("gap", ["#d6e8f5", "#f6e3c5"])
WORST = 0.4  # nats above BF16 at which a cell has the last color of those that did not diverge


def draw(r: Results) -> Picture | None:
    """Draw a table of recipes and cures for each rate: divergences, or losses above BF16."""
    if not any(key[:2] == (BF16, NONE) for key in r) or not recipes(r):
        return None
    panels, names = rates(r), recipes(r)
    each = [[name for name in names if any(k[0] == name and k[2] == x for k in r)] for x in panels]
    heights = [len(own) + 1.6 for own in each]
    figure, axes = canvas(0.7 + 0.36 * sum(heights), len(panels), 1, height_ratios=heights)
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": INK}
    for ax, rate, own in zip(axes[:, 0], panels, each, strict=True):
        for y, name in enumerate(own):
            for x, cure in enumerate(SHOWN):
                runs = r.get((name, cure, rate), [])
                above = mean(above_bf16(r, name, rate, cure)).mean
                if not runs:
                    continue
                colour: Any
                if is_calm(runs):
                    text, share = f"{above:+.2f}", min(max(above, 0.0) / WORST, 1.0)
                    colour = GAP(share)
                else:
                    colour = SHARE(0.5 + 0.5 * diverged(runs) / len(runs))
                    text = times(runs).partition(" [")[0].replace(", step ", "\nstep ")
                ax.add_patch(Rectangle((x - 0.49, y - 0.46), 0.98, 0.92, color=colour, lw=0))
                ax.text(x, y, text, **look)
        ax.axvline(6.5, color=INK, lw=0.8)
        ax.set(xlim=(-0.5, len(SHOWN) - 0.5), ylim=(len(own) - 0.5, -0.5))
        ax.set_xticks(range(len(SHOWN)), SHOWN.values(), fontsize=7)
        ax.set_yticks(range(len(own)), [TITLES[name] for name in own], fontsize=8.5)
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.set_title(f"rate {rate:g}", fontsize=9.5, loc="left", color=INK)
        ax.spines[["left", "bottom"]].set_visible(False)
    return figure


FOREST = (MATCHED, SIGNS_MATCHED, ROWS_MATCHED, BOTH, CENTRED_MATCHED, BOTH_OF_P)


def forest(r: Results) -> Picture | None:
    """Draw the loss above BF16 with its intervals, of matched cures, a panel for each rate."""
    if draw(r) is None:
        return None
    panels, names = rates(r), recipes(r)
    figure, axes = canvas(1.2 + 0.5 * len(names), 1, len(panels), sharey=True)
    for ax, rate in zip(axes[0], panels, strict=True):
        ax.axvspan(-MARGIN, MARGIN, color="#e9edf1", lw=0)
        for n, cure in enumerate(FOREST):
            for y, name in enumerate(names):
                if (name, cure, rate) in r:
                    _marked(ax, y + 0.13 * (n - 2.5), above_bf16(r, name, rate, cure), n, cure)
        ax.axvline(0.0, color=INK, lw=0.8)
        ax.set(xlabel="final loss above BF16, nats", ylim=(len(names) - 0.5, -0.5))
        ax.set_yticks(range(len(names)), [TITLES[name] for name in names], fontsize=9)
        ax.set_title(f"rate {rate:g}", fontsize=10, loc="left", color=INK)
    legend(figure, axes[0, 0], 3, loc="outside lower center", fontsize=8)
    return figure


def _marked(ax: Axes, y: float, values: Mapping[int, float], n: int, cure: str) -> None:
    """Draw seeds, their mean and its interval on one line."""
    e, colour = mean(values), COLOURS[n]
    finite = [x for x in values.values() if math.isfinite(x)]
    ax.plot(finite, [y] * len(finite), ".", color=colour, ms=3, alpha=0.45)
    bar = np.nan_to_num(np.array([[e.mean - e.low], [e.high - e.mean]]))
    look: dict[str, Any] = {"color": colour, "marker": MARKERS[n], "ms": 4.5, "lw": 1.1}
    ax.errorbar(e.mean, y, xerr=bar, capsize=1.5, label=CURES[cure].title, **look)
