"""Fig. 3 to 5, and the figure that answers the paper's question.

They show deviations by number of key tiles, format and length.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from matplotlib.figure import Figure as Picture

from roundscope.experiments.framework.estimates import Values
from roundscope.experiments.framework.figures.series import (
    BAND,
    INK,
    canvas,
    numbers,
    series,
    upwards,
)
from roundscope.experiments.framework.study import Figure
from roundscope.experiments.framework.verdicts import TENFOLD
from roundscope.experiments.papers.stability_2405_02803.emulations import (
    BASELINE,
    FORMATS,
    Point,
    at,
)
from roundscope.experiments.papers.stability_2405_02803.figures.styles import SEEDS, style
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import REAL, Scale
from roundscope.experiments.papers.stability_2405_02803.words import EMULATIONS, INPUTS

LINES = (
    ("ops:bf16", "gaussian"),
    ("ops:bf16", "one-signed-v"),
    ("ops:bf16", "sink"),
    ("sums:bf16", "gaussian"),
    ("qiu-yao", "gaussian"),
    ("fa2-bf16", "gaussian"),
)

LENGTHS = (
    ("ops:bf16", "gaussian", True),
    ("ops:bf16", "gaussian", False),
    ("sums:bf16", "gaussian", True),
    ("fa2-bf16", "gaussian", True),
    ("ops:bf16", "one-signed-v", True),
    ("ops:bf16", "sink", True),
    ("ops:bf16", REAL, True),
)


def opening(scale: Scale) -> Figure[Results]:
    """Return the figure of tiled over unfused against the number of key tiles, both baselines."""
    return Figure(
        title="Is it 10 times in BF16?",
        draw=partial(_opening, scale=scale),
        caption=(
            "Ratio of the largest deviations from binary64, by emulation (Gaussian inputs unless "
            "said otherwise). The band is a factor of 2 about 10. Left: what tiling costs; right: "
            f"what it costs against a baseline with FP32 sums and softmax. {SEEDS}"
        ),
    )


def _opening(r: Results, scale: Scale) -> Picture:
    figure, axes = canvas(4.3, 1, 2, sharey=True)
    length = scale.many[0]
    for ax, own in zip(axes[0], (True, False), strict=True):
        ax.axhspan(*TENFOLD, color=BAND, lw=0)
        ax.axhline(1.0, color=INK, lw=0.7)
        for name, family in LINES:
            points = list(_tiles(r, scale, name, family))
            look = style(name if family == "gaussian" else family)
            series(
                ax,
                [length // int(p["block_k"]) for p in points],
                [ratios(r, p, own) for p in points],
                label=_label(name, family),
                **look,
            )
        numbers(ax, [length // k for k in scale.tiles])
        ax.set_xlabel(f"key tiles (T = {length})")
        ax.set_title(
            f"to {'unfused in the same formats' if own else BASELINE + ', PyTorch’s unfused'}",
            fontsize=9.5,
            loc="left",
        )
    axes[0, 0].set_ylabel("largest |deviation|, tiled / unfused")
    axes[0, 0].text(
        0.02,
        10,
        "the paper: about 10 times",
        fontsize=8.5,
        transform=axes[0, 0].get_yaxis_transform(),
        va="center",
    )
    _legend(figure, axes[0, 0], 3)
    return figure


def ratios(r: Results, point: Point, own: bool, metric: str = "max_abs") -> Values:
    """Return a deviation over that of a baseline, seed by seed."""
    over = r.values(point, metric)
    if own:
        under = r.values(point, f"unfused_{metric}")
    else:
        length = int(point["T"])
        under = r.values(
            at(BASELINE, (length, int(point["N"])), length, str(point["input"])), metric
        )
    return {seed: x / under[seed] for seed, x in over.items() if under.get(seed)}


def formats(scale: Scale) -> Figure[Results]:
    """Return Fig. 3 and 4."""
    return Figure(
        title="Fig. 3 and 4: formats",
        draw=partial(_formats, scale=scale),
        caption=(
            f"T = {scale.bench[0]}, tiles of {scale.tile}, Gaussian inputs. In FP32 and FP64 both "
            "emulations are one. The golden value divides by the row sum after P V and unfused "
            f"attention before, hence its 1e-15 in FP64. {SEEDS}"
        ),
    )


def _formats(r: Results, scale: Scale) -> Picture:
    figure, (axes,) = canvas(3.6, 1, 2)
    left, right = axes
    for k, kind in enumerate(("ops", "sums")):
        points = [at(f"{kind}:{form}", scale.bench, scale.tile) for form in FORMATS]
        look = style(f"{kind}:bf16")
        label = {"ops": "every operation rounds, sums in FP32", "sums": "steps of sums too"}[kind]
        place: Any = {"x": range(len(FORMATS)), "aside": 0.16 * k - 0.08, "line": "none"}
        series(
            left,
            values=[r.values(p, "vs_unfused_max") for p in points],
            label=label,
            **place,
            **look,
        )
        series(
            right,
            values=[r.values(p, "max_abs") for p in points],
            label=f"tiled, {label}",
            **place,
            **look,
        )
        place["aside"] = 0.16 * k - 0.02
        series(
            right,
            values=[r.values(p, "unfused_max_abs") for p in points],
            label=f"unfused, {label}",
            hollow=True,
            **place,
            **look,
        )
    for ax in axes:
        upwards(ax)
        ax.set_xticks(range(len(FORMATS)), [form.upper() for form in FORMATS])
        ax.legend(fontsize=8, frameon=False, loc="lower left")
    left.set_ylabel("largest |tiled − unfused|")
    right.set_ylabel("largest |deviation from binary64|")
    return figure


def lengths(scale: Scale) -> Figure[Results]:
    """Return Fig. 5, absolute above, relative to the output below."""
    return Figure(
        title="Fig. 5: sequence length",
        draw=partial(_lengths, scale=scale),
        caption=(
            "Largest and mean |deviation| from binary64; dashes without a line: mean + standard "
            "deviation. N falls as T grows, so that every maximum is over equally many entries "
            "(real tensors: all 12 heads, one draw). Gaussian outputs shrink as 1 / √T, so the "
            f"absolute deviation falls where the relative one grows. {SEEDS}"
        ),
    )


def _lengths(r: Results, scale: Scale) -> Picture:
    figure, axes = canvas(6.4, 2, 2, sharex=True)
    for row, relative in enumerate(("", "rel_")):
        for name, family, tiled in LENGTHS:
            line, tile = ("-", scale.tile) if tiled else (":", 0)
            across = scale.real if family == REAL else scale.lengths
            points = [at(name, (t, scale.heads(t)), tile or t, family) for t in across]
            look = style(name if family == "gaussian" else family)
            label = _label(name, family) + ("" if tile else ", one key tile")
            largest, middle, spread = (
                [r.values(p, relative + m) for p in points]
                for m in (("max" if relative else "max_abs"), "mean_abs", "std_abs")
            )
            series(axes[row, 0], across, largest, label=label, line=line, hollow=not tile, **look)
            series(axes[row, 1], across, middle, label=label, line=line, hollow=not tile, **look)
            upper = [
                {s: x + b[s] for s, x in a.items()} for a, b in zip(middle, spread, strict=True)
            ]
            means = [sum(u.values()) / len(u) if u else float("nan") for u in upper]
            axes[row, 1].plot(across, means, "_", color=look["color"], ms=9)
        what = "deviation" if not relative else "deviation / rms of the output"
        axes[row, 0].set_ylabel(f"largest {what}")
        axes[row, 1].set_ylabel(f"mean {what}")
    for ax in axes.flat:
        numbers(ax, scale.lengths)
    for ax in axes[-1]:
        ax.set_xlabel(f"T (tile {scale.tile}, N T = {scale.entries})")
    _legend(figure, axes[0, 0], 3)
    return figure


def _tiles(r: Results, scale: Scale, name: str, family: str) -> Iterator[Point]:
    """Yield the conditions of the tile study that were measured."""
    for block_k in scale.tiles:
        point = at(name, scale.many, block_k, family)
        if r.rows(point):
            yield point


def _label(name: str, family: str) -> str:
    return EMULATIONS[name] if family == "gaussian" else f"{name}, {INPUTS[family]}"


def _legend(figure: Any, ax: Any, columns: int) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=columns,
        fontsize=8,
        frameon=False,
        columnspacing=1.2,
    )
