"""A benchmark's picture: who is how fast, as horizontal bars in groups.

And the files of `--out`, of which it is one.
"""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from roundscope.experiments.bench.deliver import Bar
from roundscope.experiments.report.terminal import plain
from roundscope.experiments.sweep.report.plots import COLOURS
from roundscope.experiments.trace import plots
from roundscope.experiments.trace.plots import INK, QUIET

OURS, OTHERS = COLOURS[0], (*COLOURS[1:5], *COLOURS[7:], COLOURS[5])
WIDTH = 8.2  # inches: 1200 pixels in a PNG
# the longest bar over the shortest: beyond, an axis of equal steps shows nothing of the short ones
SPREAD = 30
LINE = 0.21  # inches


def write(
    out: Path,
    what: str,
    found: dict[str, Any],
    bars: Sequence[Bar],
    title: str,
    axis: str,
    *,
    as_json: bool,
) -> None:
    """bench-WHAT.json with what was found, and bench-WHAT.png, in a folder, made if it is not
    there; says so unless JSON is printed.
    """
    out.mkdir(parents=True, exist_ok=True)
    data, drawn = out / f"bench-{what}.json", out / f"bench-{what}.png"
    data.write_text(json.dumps(plain(found), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draw(drawn, bars, title, axis)
    if not as_json:
        print(f"written: {data}\nwritten: {drawn}")


def draw(path: Path, bars: Sequence[Bar], title: str, axis: str) -> None:
    """The picture as a PNG file, 1200 pixels wide."""
    path.write_bytes(plots.png(picture(bars, title, axis)))


def picture(bars: Sequence[Bar], title: str, axis: str) -> Figure:
    """Groups in the order of their first bars, the fastest of each on top; ours in one colour, each
    rival in one of its own.
    """
    groups = {
        group: sorted((b for b in bars if b[0] == group), key=lambda b: -b[2])
        for group in dict.fromkeys(b[0] for b in bars)
    }
    colours = _colours(bars)
    figure = Figure(
        figsize=(WIDTH, 1.5 + LINE * (len(bars) + 1.4 * len(groups))),
        layout="constrained",
        facecolor="white",
    )
    figure.suptitle(
        textwrap.fill(title, 80), x=0.012, ha="left", fontsize=11.5, fontweight="bold", color=INK
    )
    ax = figure.subplots()
    y, labels = 0.0, []
    for group, members in groups.items():
        labels.append((y, group, True))
        for _, name, value, is_ours in members:
            y += 1.0
            labels.append((y, name, False))
            ax.barh(y, value, height=0.78, color=OURS if is_ours else colours[name])
            ax.annotate(
                number(value),
                (value, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=INK,
                bbox={"facecolor": "white", "linewidth": 0, "pad": 0.6},
            )
        y += 1.4
    _down(ax, labels)
    _across(ax, [b[2] for b in bars], axis)
    keys = {"ours": OURS} if any(b[3] for b in bars) else {}
    handles = [Patch(color=colour, label=name) for name, colour in (keys | colours).items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _colours(bars: Sequence[Bar]) -> dict[str, str]:
    names = dict.fromkeys(name for _, name, _, is_ours in bars if not is_ours)
    return {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(names)}


def number(value: float) -> str:
    """Two digits, and no power of ten that a reader has to work out."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def span(values: Sequence[float]) -> str:
    """The least and the largest as words of a title, or the one number that both are."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _down(ax: Axes, labels: Sequence[tuple[float, str, bool]]) -> None:
    """Names at their bars, a group's in bold above them."""
    ax.set_yticks([y for y, _, _ in labels], [name for _, name, _ in labels], fontsize=9, color=INK)
    for tick, (_, _, heads) in zip(ax.yaxis.get_ticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if heads else "normal")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(max((y for y, _, _ in labels), default=0.0) + 0.7, -0.7)


def _across(ax: Axes, values: Sequence[float], axis: str) -> None:
    """From 0, or logarithmic where the spread needs it; a line at 1, where whatever is compared
    with stands.
    """
    low, high = min((1.0, *values)), max((1.0, *values))
    if high / low > SPREAD:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        ax.set_xlim(low / 2.0, high * (high / low) ** 0.09)
    else:
        ax.set_xlim(0.0, 1.08 * high)
    ax.axvline(1.0, color=QUIET, lw=1.0, ls="--", zorder=0)
    ax.set_xlabel(axis, fontsize=9.5, color=INK)
    ax.tick_params(axis="x", labelsize=9, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
