"""A benchmark's picture, horizontal bars of speed in groups, and the files of `--out`."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from roundscope.emu.whole_files import write_whole
from roundscope.tools.bench.drawing import Bar, Drawing, number
from roundscope.tools.report import pictures
from roundscope.tools.report.pictures import COLOURS, INK, QUIET
from roundscope.tools.results.folder import write_json

OURS, OTHERS = COLOURS[0], (*COLOURS[1:5], *COLOURS[7:], COLOURS[5])
WIDTH = 8.2  # inches: 1200 pixels in a PNG
# the longest bar over the shortest: beyond, an axis of equal steps shows nothing of the short ones
SPREAD = 30
LINE = 0.21  # inches


def write(
    out: Path, what: str, results: dict[str, Any], drawing: Drawing, *, as_json: bool
) -> None:
    """Write bench-WHAT.json, with the measurements, and bench-WHAT.png to a folder.

    The folder is created if needed. The names of the files are printed unless JSON is.
    """
    out.mkdir(parents=True, exist_ok=True)
    data, drawn = out / f"bench-{what}.json", out / f"bench-{what}.png"
    write_json(data, results)
    draw(drawn, *drawing)
    if not as_json:
        print(f"written: {data}\nwritten: {drawn}")


def draw(path: Path, bars: Sequence[Bar], title: str, axis: str) -> None:
    """Write the picture as a PNG file, 1200 pixels wide."""
    write_whole(path, pictures.png(picture(bars, title, axis)))


def picture(bars: Sequence[Bar], title: str, axis: str) -> Figure:
    """Return the picture: groups in order, the fastest of each on top, a color for each rival."""
    groups = {
        group: sorted((b for b in bars if b[0] == group), key=lambda b: -b[2])
        for group in dict.fromkeys(b[0] for b in bars)
    }
    rivals = dict.fromkeys(name for _, name, _, is_ours in bars if not is_ours)
    colours = {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(rivals)}
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


def _down(ax: Axes, labels: Sequence[tuple[float, str, bool]]) -> None:
    """Label the vertical axis: names at their bars, the group's name in bold above them."""
    ax.set_yticks([y for y, _, _ in labels], [name for _, name, _ in labels], fontsize=9, color=INK)
    for tick, (_, _, heads) in zip(ax.yaxis.get_ticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if heads else "normal")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(max((y for y, _, _ in labels), default=0.0) + 0.7, -0.7)


def _across(ax: Axes, values: Sequence[float], axis: str) -> None:
    """Set the horizontal axis, logarithmic where the values spread too far, with a line at 1."""
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
