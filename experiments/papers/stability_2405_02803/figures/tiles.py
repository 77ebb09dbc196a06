"""Pictures of tiles: their shape, what each event costs, controls, and sign beside magnitude."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.experiments.framework.estimates import Values
from roundscope.experiments.framework.figures.series import (
    BAND,
    COLOURS,
    INK,
    canvas,
    numbers,
    series,
    upwards,
)
from roundscope.experiments.framework.study import Figure
from roundscope.experiments.papers.stability_2405_02803.conditions import (
    CONTROLS,
    EVENTS,
    FAMILIES,
    GROUPS,
    biased,
    narrow,
    shapes,
)
from roundscope.experiments.papers.stability_2405_02803.emulations import at
from roundscope.experiments.papers.stability_2405_02803.figures.deviations import ratios
from roundscope.experiments.papers.stability_2405_02803.figures.styles import SEEDS, style
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import REAL, Scale
from roundscope.experiments.papers.stability_2405_02803.tables import EXACT
from roundscope.experiments.papers.stability_2405_02803.words import INPUTS


def shape(scale: Scale) -> Figure[Results]:
    """Return Fig. 6."""
    return Figure(
        title="Fig. 6: shape and size of tiles",
        draw=partial(_shape, scale=scale),
        caption=(
            f"T = {scale.many[0]}, Gaussian inputs; left and middle ops:bf16. Only keys per tile "
            f"count: queries per tile change no bit. {SEEDS}"
        ),
    )


def _shape(r: Results, scale: Scale) -> Picture:
    figure, (axes,) = canvas(3.7, 1, 3, width_ratios=[1, 1, 1.5])
    cut = 2 * len(scale.swaps)
    for ax, sides, title in zip(
        axes, (shapes(scale)[:cut], shapes(scale)[cut:]), ("swapped", "square"), strict=False
    ):
        points = [at("ops:bf16", scale.many, keys, block_q=queries) for queries, keys in sides]
        series(
            ax,
            range(len(sides)),
            [r.values(p, "max_abs") for p in points],
            label="",
            line="none",
            **style("ops:bf16"),
        )
        ax.set_xticks(range(len(sides)), [f"{q}x{k}" for q, k in sides], fontsize=8, rotation=30)
        ax.set_xlim(-0.5, len(sides) - 0.5)
        ax.set_title(f"{title}: queries x keys", fontsize=9.5, loc="left")
        upwards(ax)
    for name in ("ops:bf16", "qiu-yao", "sums:bf16", "fa2-bf16"):
        widths = [k for k in scale.tiles if r.rows(at(name, scale.many, k))]
        values = [r.values(at(name, scale.many, k), "max_abs") for k in widths]
        series(axes[2], widths, values, label=name, **style(name))
    numbers(axes[2], scale.tiles)
    axes[2].set_xlabel("keys per tile")
    axes[2].set_title("larger", fontsize=9.5, loc="left")
    axes[2].legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("largest |deviation from binary64|")
    _same_scale(axes[:2])
    return figure


def attribution(scale: Scale) -> Figure[Results]:
    """Return the figure of each event alone, and of each left out."""
    return Figure(
        title="Which event makes the difference?",
        draw=partial(_attribution, scale=scale),
        caption=(
            f"ops:bf16, T = {scale.bench[0]}, {scale.bench[0] // scale.narrow} key tiles. An event "
            "that unfused attention does not have, or that rounds nothing, has no marker. Right: "
            "below 1 the event makes the deviation larger. Faint dots: seeds."
        ),
    )


def _attribution(r: Results, scale: Scale) -> Picture:
    figure, axes = canvas(7.2, 2, 2, sharex="col", sharey=True)
    names = (*EVENTS, *GROUPS)
    y = np.arange(len(names))[::-1]
    for row, family in enumerate(("gaussian", "sink")):
        left, right = axes[row]
        base = r.values(narrow(scale, family), "rms")
        for i, site in zip(y, names, strict=True):
            only, but = narrow(scale, family, only=site), narrow(scale, family, but=site)
            rms, unfused, rel = (r.values(only, m) for m in ("rms", "unfused_rms", "rel_rms"))
            per = {s: rel[s] / rms[s] for s in rms if rms[s]}
            _dot(left, i + 0.12, rel, "tiled", "ops:bf16", False)
            _dot(left, i - 0.12, {s: unfused[s] * per[s] for s in per}, "unfused", "ops:bf16", True)
            _dot(
                right,
                i,
                {s: x / base[s] for s, x in r.values(but, "rms").items() if base.get(s)},
                "",
                "sums:bf16",
                False,
            )
        if np.isfinite(left.dataLim.minposx):
            left.set_xscale("log")
        left.set_title(f"{INPUTS[family]}: this event alone in BF16", fontsize=9.5, loc="left")
        right.set_title(f"{INPUTS[family]}: this event alone in binary64", fontsize=9.5, loc="left")
        right.axvline(1.0, color=INK, lw=0.7)
        for ax in (left, right):
            ax.set_yticks(y, names, fontfamily="monospace", fontsize=8)
            ax.grid(axis="y", color=BAND, lw=0.6)
    axes[1, 0].set_xlabel("rms deviation / rms of the output")
    axes[1, 1].set_xlabel("rms deviation / that of all events in BF16")
    handles = {label: h for h, label in zip(*axes[0, 0].get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper left",
        ncols=2,
        fontsize=8.5,
        frameon=False,
    )
    return figure


def _dot(ax: Any, y: float, values: Values, label: str, look: str, hollow: bool) -> None:
    """Draw one event: its seeds, and their geometric mean."""
    seen = [v for v in values.values() if np.isfinite(v) and v > EXACT]
    if seen:
        colour, marker = style(look)["color"], style(look)["marker"]
        ax.plot(seen, [y] * len(seen), ".", color=colour, ms=4, alpha=0.3, mew=0)
        ax.plot(
            np.exp(np.mean(np.log(seen))),
            y,
            marker,
            color=colour,
            mfc="white" if hollow else colour,
            ms=5,
            ls="none",
            label=label,
        )


def controls(scale: Scale) -> Figure[Results]:
    """Return the figure of the running quantities from which the excess may come."""
    return Figure(
        title="Is it the rescales?",
        draw=partial(_controls, scale=scale),
        caption=(
            f"ops:bf16, T = {scale.bench[0]}, {scale.bench[0] // scale.narrow} key tiles (real "
            f"tensors: T = {scale.real[-1]}, 16 key tiles, one draw), over unfused attention "
            f"wholly in BF16. Rescale events: DM, ALPHA, AL, AO. {SEEDS}"
        ),
    )


def _controls(r: Results, scale: Scale) -> Picture:
    figure, ((ax,),) = canvas(3.8, 1, 1)
    families = (*FAMILIES, REAL)
    for k, (what, change) in enumerate(CONTROLS.items()):
        values = []
        for family in families:
            under = r.values(narrow(scale, family), "unfused_rms")
            values.append(
                {
                    s: x / under[s]
                    for s, x in r.values(narrow(scale, family, **change), "rms").items()
                    if under.get(s)
                }
            )
        series(
            ax,
            range(len(families)),
            values,
            label=what,
            color=COLOURS[k],
            marker="osD^vPX"[k],
            line="none",
            aside=0.11 * (k - 3),
        )
    ax.axhline(1.0, color=INK, lw=0.7)
    upwards(ax)
    ax.set_xticks(range(len(families)), [INPUTS[f] for f in families])
    ax.set_ylabel("rms deviation / that of unfused")
    figure.legend(
        *ax.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return figure


def bias(scale: Scale) -> Figure[Results]:
    """Return the figure of magnitude and sign against the number of key tiles."""
    return Figure(
        title="Sign beside magnitude (arXiv 2510.04212)",
        draw=partial(_bias, scale=scale),
        caption=(
            f"qiu-yao, T = {scale.bench[0]} (real tensors: {scale.real[-1]}, one draw). Left: what "
            "tiling costs. Right: the bias of the output and, for repeated maxima (pairs of equal "
            f"keys, 64 apart), of the event PV. {SEEDS}"
        ),
    )


def _bias(r: Results, scale: Scale) -> Picture:
    figure, (axes,) = canvas(4.0, 1, 2)
    left, right = axes
    for k, family in enumerate(("gaussian", "repeated-maximum", REAL)):
        for stabiliser in ("none", "2"):
            counts = [c for c in scale.counts if r.rows(biased(scale, family, c, stabiliser))]
            points = [biased(scale, family, c, stabiliser) for c in counts]
            name, wide = INPUTS[family], stabiliser != "none"
            look: Any = {"color": COLOURS[k], "line": ":" if wide else "-", "hollow": wide}
            label = name + (", stabilizer" if wide else "")
            signs = family == "repeated-maximum" or not wide
            series(
                left,
                counts,
                [ratios(r, p, True, "rms") for p in points],
                label=label,
                marker="o",
                **look,
            )
            if signs:
                series(
                    right,
                    counts,
                    [r.values(p, "mean_ulps") for p in points],
                    label=f"{label}: out",
                    marker="o",
                    geometric=False,
                    **look,
                )
            if family == "repeated-maximum":
                values = [r.values(p, "PV.mean_ulps") for p in points]
                series(
                    right,
                    counts,
                    values,
                    label=f"{label}: PV",
                    marker="s",
                    geometric=False,
                    **look | {"color": COLOURS[3]},
                )
    left.axhline(1.0, color=INK, lw=0.7)
    right.axhline(0.0, color=INK, lw=0.7)
    for ax in axes:
        numbers(ax, scale.counts, log=False)
        ax.set_xlabel("key tiles")
        ax.legend(fontsize=7.5, frameon=False)
    left.set_ylabel("rms deviation, tiled / unfused")
    right.set_ylabel("mean signed error, ulps")
    return figure


def _same_scale(axes: Any) -> None:
    low, high = zip(*(ax.get_ylim() for ax in axes), strict=True)
    for ax in axes:
        ax.set_ylim(min(low), max(high))
