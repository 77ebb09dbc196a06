"""`roundscope watch LOG`: reads the log of a watched training, prints it and draws it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from roundscope.attention.models import log
from roundscope.attention.models.alarm import KEPT
from roundscope.attention.models.log import Look, over_since
from roundscope.attention.models.selection import Layer
from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.tools.errors import bad
from roundscope.tools.report import pictures
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.report.terminal import console, print_json

WORST = 5  # layers that are listed
LONG = 2.0**-9  # of a number, what one rounding to nearest in BF16 can make at most


MARK = b"roundscope watch"  # in every picture of this command


def run(path: Path, *, out: Path | None, as_json: bool) -> None:
    """Print the log that `watch(log=...)` wrote, and draw it into a PNG file, by default beside it.

    Raises ValueError for a file that is no such log, OSError if one cannot be read or written.
    """
    of_log = log.read(path)
    looks = last_course(of_log)
    picture = out if out is not None else path.with_suffix(".png")
    if picture.suffix.lower() != ".png":
        raise ValueError(f"--out={picture}: the picture is a PNG file, such as watch.png")
    if picture == path:
        raise ValueError(f"--out={picture}: is the log itself; name another file")
    if picture.exists() and MARK not in read_whole(picture):
        raise bad("--out", str(picture), "exists and is no picture of this command; name another")
    write_whole(picture, pictures.png(draw(looks), software=MARK.decode()))
    if as_json:
        print_json(
            numbers(looks) | {"looks_not_shown": len(of_log) - len(looks), "picture": str(picture)}
        )
    else:
        for line in (*lines(looks), *not_shown(of_log, looks), f"drawn in {picture}"):
            console().print(line, markup=False)


def last_course(looks: Sequence[Look]) -> list[Look]:
    """Return the looks of the training as it went on, its steps in order.

    Where the steps of a log go back the training was resumed: earlier looks from there on are left
    out.
    """
    kept: list[Look] = []
    for look in looks:
        while kept and kept[-1].step >= look.step:
            kept.pop()
        kept.append(look)
    return kept


def not_shown(of_log: Sequence[Look], looks: Sequence[Look]) -> list[str]:
    """Return a line on the looks of a log that `last_course` left out, if there are any."""
    n = len(of_log) - len(looks)
    if not n:
        return []
    few = "1 look" if n == 1 else f"{n} looks"
    if looks[0] is of_log[0]:
        return [f"the steps of this log go back: {few} from before that are not shown"]
    starts = 1 + sum(b.step <= a.step for a, b in pairwise(of_log[:n]))
    runs = f"an earlier run of {few} is" if starts == 1 else f"earlier runs, {few} in all, are"
    return [f"{runs} in this log, not shown: give each run a log of its own"]


def numbers(looks: Sequence[Look]) -> dict[str, Any]:
    """Return what is printed as JSON: what is not finite, the last look, and the shares of all."""
    last, alarm = looks[-1], alarm_of(looks)
    lost = [(look, *place) for look in looks for place in look.lost[:1]]
    return {
        "not_finite": {
            "looks": len(lost),
            "first": _place(*lost[0][1:]) | {"step": lost[0][0].step} if lost else None,
        },
        "drift": last.now,
        "drift_history": last.share,
        "gain": sum(gains_of(last)) / len(gains_of(last)) if gains_of(last) else None,
        "looks": len(looks),
        "first_step": looks[0].step,
        "last_step": last.step,
        "threshold": last.threshold,
        "alarm": alarm
        and {
            "step": alarm.step,
            "share": alarm.share,
            **_place(alarm.layer, alarm.head),
            "over_since": over_since(looks),
        },
        "steps": [look.step for look in looks],
        "drifts": [look.now for look in looks],
        "drift_histories": [look.share for look in looks],
        "layers": [
            {
                "layer": own.layer.number,
                "name": own.layer.name,
                "drift": own.now,
                "drift_history": own.share,
            }
            for own in last.layers
        ],
    }


def _place(layer: Layer, head: int) -> dict[str, Any]:
    return {"layer": layer.number, "name": layer.name, "head": head}


def lines(looks: Sequence[Look]) -> list[str]:
    """Return what is printed as text: what is not finite, then the last look, then the others."""
    first, last = looks[0], looks[-1]
    few = "look" if len(looks) == 1 else "looks"
    now = (
        f"{last.now:.2g} of the queries' gradient is made by rows of dS that do not sum to 0"
        if math.isfinite(last.now)
        else "not known, a number of it is not finite"
    )
    found = [
        *_lost(looks),
        f"drift at the last look, step {last.step}: {now}",
        f"{len(looks)} {few}, steps {first.step} to {last.step}; over all, a look counting {KEPT}"
        f" times the next one: {last.share:.2g}",
        f"alarm: {_alarm(looks)}",
        *_gain(last),
    ]
    by_drift = sorted(
        last.layers, key=lambda own: -own.now if math.isfinite(own.now) else -math.inf
    )
    found += [
        f"layer {own.layer.number} ({own.layer.name}): {own.now:.2g}, over all looks"
        f" {own.share:.2g}"
        for own in by_drift[:WORST]
    ]
    if len(by_drift) > WORST:
        found.append(f"and {len(by_drift) - WORST} layers with less")
    return found


def alarm_of(looks: Sequence[Look]) -> Any:
    """Return the first alarm of a training, or None."""
    return next((look.alarm for look in looks if look.alarm is not None), None)


def _lost(looks: Sequence[Look]) -> list[str]:
    """Return a line on the looks whose numbers are not finite, if there are any."""
    lost = [look for look in looks if look.lost]
    if not lost:
        return []
    (layer, head), *_ = lost[0].lost
    return [
        f"NaN or infinite: numbers of {len(lost)} of {len(looks)} looks, first at step"
        f" {lost[0].step} in head {head} of layer {layer.number} ({layer.name}),"
        f" {len(lost[0].lost)} heads there; last at step {lost[-1].step}. These looks have no part"
        " in the drift. Loss scaling makes such steps and skips them; otherwise `capture` that"
        " layer and `roundscope trace` the file"
    ]


def gains_of(look: Look) -> list[float]:
    """Return the gain of each head's output at a look, those that are known."""
    gains = (x for own in look.layers for x in own.numbers.gain)
    return [x for x in gains if math.isfinite(x)]


def _gain(look: Look) -> list[str]:
    """Return a line on how much too long the outputs are, if any is known."""
    gains = gains_of(look)
    if not gains:
        return []
    mean, low, high = sum(gains) / len(gains), min(gains), max(gains)
    told = f"length of the output: {mean:+.2g} of it, heads from {low:+.2g} to {high:+.2g}"
    if not (abs(mean) > LONG and (low > 0.0 or high < 0.0)):
        return [told]
    way = "too short, as outputs rounded toward zero are" if high < 0.0 else "too long"
    return [
        f"{told}: more than rounding to nearest in BF16 can make. All are {way}. It need not move"
        " the drift: `capture` a layer and `roundscope identify` the file"
    ]


def _alarm(looks: Sequence[Look]) -> str:
    """Return what there is of an alarm: when it began, and whether it is over."""
    alarm, last = alarm_of(looks), looks[-1]
    if alarm is None:
        return "there is no threshold" if last.threshold is None else (
            f"none (threshold {last.threshold:.2g})"
        )  # fmt: skip
    over = over_since(looks)
    if over is None:
        return f"since {alarm}"
    few = sum(look.step >= over for look in looks)
    return (
        f"over since step {over}, {few} {'look' if few == 1 else 'looks'} not above"
        f" {alarm.threshold:.2g}; it began at {alarm}"
    )


RED = "#b2182b"
NAMED = 6  # layers that have a line in the legend; more have a scale of colors
LEAST = 1e-12  # a share of 0 is drawn here, for the axis is logarithmic


def draw(looks: Sequence[Look]) -> Figure:
    """Draw the drift of each look, of all layers and of each, and the size of the row sums.

    The share over all looks, which the threshold is for, is a dotted line; a look that is not
    finite is a cross at the top.
    """
    figure, axes = canvas(5.6, rows=2, sharex=True, height_ratios=(3, 2))
    shares, sizes = axes[:, 0]
    layers = sorted({own.layer for look in looks for own in look.layers}, key=lambda x: x.number)
    colors = [colormaps["viridis"](x) for x in np.linspace(0.05, 0.9, max(len(layers), 2))]
    for layer, color in zip(layers, colors, strict=False):
        own = [next((x for x in look.layers if x.layer == layer), None) for look in looks]
        label = f"layer {layer.number}" if len(layers) <= NAMED else None
        _line(shares, looks, [x.now if x else math.nan for x in own], color=color, label=label)
        means = [float(np.mean(x.numbers.row_sums)) if x else math.nan for x in own]
        _line(sizes, looks, means, color=color)
    _line(shares, looks, [look.now for look in looks], color=INK, width=2.4, label="all layers")
    shares.plot(
        [look.step for look in looks], [_drawn(look.share) for look in looks], ":", color=INK,
        linewidth=1.6, label="over all looks",
    )  # fmt: skip
    if steps := [look.step for look in looks if look.lost]:
        label, top = f"NaN or infinite ({len(steps)})", shares.get_xaxis_transform()
        shares.plot(
            steps, [0.97] * len(steps), "x", color=RED, ms=6, mew=1.6, transform=top, label=label
        )
    _threshold(shares, looks)
    shares.set_ylabel("share of the queries' gradient\nthat row sums of dS make")
    sizes.set_ylabel("rms of row sums\nover that of rowsum |dS|")
    sizes.set_xlabel("step")
    for ax in (shares, sizes):
        if not np.isfinite(ax.dataLim.intervaly).all():
            ax.set_ylim(LEAST, 1.0)  # a logarithmic axis has no limits of its own without a number
        ax.set_yscale("log")
        ax.grid(axis="y", color=QUIET, alpha=0.25, linewidth=0.6)
    shares.margins(y=0.12)
    shares.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    if len(layers) > NAMED:
        half = (colormaps["viridis"](x) for x in np.linspace(0.05, 0.9, 64))
        norm = Normalize(layers[0].number, layers[-1].number)
        scale = ScalarMappable(norm, ListedColormap(list(half)))
        bar = figure.colorbar(scale, cax=sizes.inset_axes((1.03, 0.0, 0.02, 1.0)))
        bar.set_label("layer", color=INK, size=9)
        bar.ax.tick_params(labelsize=8, colors=INK)
        bar.outline.set_visible(False)
    return figure


def _line(
    ax: Axes,
    looks: Sequence[Look],
    values: Sequence[float],
    *,
    color: object,
    width: float = 1.1,
    label: str | None = None,
) -> None:
    """Draw one series; looks without a number leave a gap, and single ones are dots."""
    drawn = [_drawn(x) for x in values]
    steps = [look.step for look in looks]
    marker = "o" if len(looks) <= 40 else ""
    ax.plot(
        steps, drawn, color=color, linewidth=width, label=label, marker=marker, markersize=width + 2
    )


def _drawn(x: float) -> float:
    return max(x, LEAST) if math.isfinite(x) else math.nan


def _threshold(ax: Axes, looks: Sequence[Look]) -> None:
    """Draw the threshold, and the alarm where there is one."""
    limit, alarm = looks[-1].threshold, alarm_of(looks)
    if limit is not None:
        ax.axhline(limit, color=RED, linestyle="--", linewidth=1.2, label=f"threshold {limit:.2g}")
    if alarm is None:
        return
    over = over_since(looks)
    ax.axvspan(alarm.step, looks[-1].step if over is None else over, color=RED, alpha=0.07, lw=0)
    ax.plot(
        [alarm.step], [alarm.share], "o", color=RED, markersize=8, markerfacecolor="white",
        markeredgewidth=2, zorder=5, label=f"alarm, step {alarm.step}\n(layer {alarm.layer.number},"
        f" head {alarm.head})" + ("" if over is None else f"\nover since {over}"),
    )  # fmt: skip
