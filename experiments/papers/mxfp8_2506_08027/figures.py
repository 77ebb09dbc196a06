"""The pictures: losses of arms, the gradient's error, what formats do to operands and copies."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import Values, factor, mean
from roundscope.experiments.framework.figures.series import (
    COLOURS,
    GRID,
    INK,
    MARKERS,
    QUIET,
    canvas,
)
from roundscope.experiments.papers.mxfp8_2506_08027.claims import apart
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    FP32,
    PROXY,
    Scale,
    gpt_arms,
)
from roundscope.experiments.papers.mxfp8_2506_08027.measurements import (
    CASES,
    COPIES,
    Results,
    Runs,
    losses,
)
from roundscope.experiments.train.gpt.interventions import MATRICES

HEADS = {
    "saturated": "saturated, %",
    "underflow": "to zero, %",
    "shrink": "shrink, % of sum |V|",
    "error": "|Q - V| / |V|, %",
}
LEGEND: dict[str, Any] = {
    "loc": "outside upper left",
    "ncols": 4,
    "fontsize": 8.5,
    "frameon": False,
}
ROUNDED = [name for name in PROXY if name != FP32]  # the arms of the proxy that round


def opening(r: Results, scale: Scale) -> Figure:
    """Draw the GPT's final loss above BF16's: a panel per rate, a row per arm, a dot per seed.

    Bars are 95 % intervals.
    """
    names = [name for name in gpt_arms(scale.gpt) if name != BF16]
    figure, axes = canvas(0.9 + 0.3 * len(names), 1, len(r.rates), sharey=True)
    for ax, lr in zip(axes.flat, r.rates, strict=True):
        for row, name in enumerate(names):
            above = {s: 1e3 * gap for s, gap in r.gaps(lr, name, BF16).items()}
            _row(ax, row, above, QUIET if name == FP32 else COLOURS[0])
            _count(ax, row, r.gpt.get((lr, name), []))
        _rows(ax, names, f"lr {lr:g}", "final loss above BF16's, mnats")
        ax.axvline(0.0, color=INK, lw=0.8)
    return figure


def proxy(r: Results) -> Figure:
    """Draw the proxy's final loss over FP32's, as `opening` does."""
    figure, axes = canvas(0.9 + 0.32 * len(ROUNDED), 1, len(r.proxy_rates), sharey=True)
    for ax, lr in zip(axes.flat, r.proxy_rates, strict=True):
        exact = losses(r.proxy.get((lr, FP32), []))
        for row, name in enumerate(ROUNDED):
            own = r.proxy.get((lr, name), [])
            over = {seed: loss / exact[seed] for seed, loss in losses(own).items() if seed in exact}
            _row(ax, row, over, COLOURS[0], geometric=True)
            _count(ax, row, own)
        _rows(ax, ROUNDED, f"lr {lr:g}", "final loss over FP32's")
        ax.axvline(1.0, color=INK, lw=0.8)
    return figure


def epsilon(r: Results) -> Figure:
    """Draw zeta and the signed part of the gradient's error: a row per arm, a color per rate."""
    figure, axes = canvas(1.0 + 0.36 * len(ROUNDED), 1, 2, sharey=True)
    zeta, along = axes[0]
    for i, lr in enumerate(r.proxy_rates):
        shift = 0.22 * (i - (len(r.proxy_rates) - 1) / 2)
        for row, name in enumerate(ROUNDED):
            _row(zeta, row + shift, r.seen(lr, name, "zeta"), COLOURS[i], geometric=True)
            _row(along, row + shift, r.seen(lr, name, "along"), COLOURS[i])
        zeta.plot([], [], "o", color=COLOURS[i], label=f"lr {lr:g}")
    _rows(zeta, ROUNDED, "", "zeta = |epsilon| / |g|")
    _rows(along, ROUNDED, "", "<epsilon, g> / |g|^2: below 0 shortens the step")
    zeta.set_xscale("log")
    along.axvline(0.0, color=INK, lw=0.8)
    figure.legend(**LEGEND)
    return figure


def audit(r: Results) -> Figure:
    """Draw what every rule and format does to every operand.

    Numbers are means over layers, matrices, steps and seeds.
    """
    operands = [str(site) for pair in COPIES.values() for site in pair]
    figure, axes = canvas(4.3, 1, 4, sharey=True)
    for i, (element, rule) in enumerate(CASES):
        style = {
            "marker": MARKERS[i % 4],
            "color": COLOURS[0 if element == "E4M3" else 1],
            "mfc": "none" if i % 2 else None,
            "ls": "none",
            "label": f"{element} {rule}",
        }
        rows = [row + 0.08 * (i - 3.5) for row in range(len(operands))]
        for ax, number in zip(axes.flat, HEADS, strict=True):
            x = [
                100.0 * mean(r.audited(number, operand=o, element=element, rule=str(rule))).mean
                for o in operands
            ]
            ax.plot(x, rows, ms=4.5, **style)
    for ax, head in zip(axes.flat, HEADS.values(), strict=True):
        _rows(ax, operands, "", head)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), **LEGEND)
    return figure


def copies(r: Results) -> Figure:
    """Draw |Q_row - Q_col| over |Q - V|: a row per tensor and matrix, a color per rule; E4M3."""
    places = [(tensor, matrix) for tensor in COPIES for matrix in map(str, MATRICES)]
    figure, axes = canvas(0.9 + 0.24 * len(places))
    ax = axes[0, 0]
    for i, rule in enumerate(dict.fromkeys(str(rule) for _, rule in CASES)):
        style = {"color": COLOURS[i], "ms": 5, "mfc": "none" if i % 2 else None}
        for row, (tensor, matrix) in enumerate(places):
            where = {"operand": str(COPIES[tensor][0]), "matrix": matrix, "element": "E4M3"}
            own = mean(apart(r, **where, rule=rule)).mean
            ax.plot(own, row, MARKERS[i], label=None if row else rule, **style)
    _rows(ax, [f"{tensor} of {m}" for tensor, m in places], "", "|Q_row - Q_col| / |Q - V|")
    figure.legend(**LEGEND)
    return figure


def _row(ax: Axes, row: float, values: Values, colour: str, geometric: bool = False) -> None:
    """Draw seeds as faint dots, the mean and its interval."""
    seen = [v for v in values.values() if math.isfinite(v)]
    ax.plot(seen, [row + 0.17] * len(seen), "o", color=colour, ms=3, alpha=0.45, mew=0)
    e = factor(values) if geometric else mean(values)
    if seen and math.isfinite(e.mean):
        ends = [[e.mean - e.low], [e.high - e.mean]] if math.isfinite(e.low) else None
        ax.errorbar([e.mean], [row], xerr=ends, fmt="o", color=colour, ms=4.5, lw=1.4, capsize=2.5)


def _count(ax: Axes, row: int, own: Runs) -> None:
    """Write how many runs diverged, where any did."""
    if diverged(own):
        text = f"{diverged(own)} of {len(own)} diverged"
        style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 8, "color": COLOURS[1]}
        ax.text(0.99, row, text, transform=ax.get_yaxis_transform(), **style)


def _rows(ax: Axes, names: Sequence[str], title: str, label: str) -> None:
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_title(title, fontsize=9.5, loc="left")
    ax.set_xlabel(label)
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)
