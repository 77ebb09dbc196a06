"""What leaks in each recipe, on real tensors: the routes of the row sums, and the gains of dQ.

The tensors are those of all-MiniLM-L6-v2 that the repository ships: q, k, v and dO of its layers.
A cell is a layer and a head; intervals are over cells.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.attention import Plan
from roundscope.experiments.framework.estimates import Estimate, positive, ratio
from roundscope.experiments.framework.estimates import mean as arithmetic
from roundscope.experiments.framework.study import Progress, Static
from roundscope.experiments.framework.verdicts import SAME, Verdict, interval, number, verdict_on
from roundscope.experiments.questions.lowbit.measure import COLUMNS, ROUTES, mean_key_errors
from roundscope.experiments.questions.lowbit.measure import measured as measured_call
from roundscope.experiments.questions.lowbit.recipes import (
    BOTH,
    BOTH_OF_P,
    CENTRED,
    CENTRED_HIGH,
    CURES,
    HIGH,
    MATCHED,
    NONE,
    OF_ROUNDED,
    PLAIN,
    RECIPES,
    words,
)
from roundscope.tools.report.pictures import COLOURS, INK, canvas
from roundscope.tools.tensors.layers import read_layers, sample_path

HEADS = (0, 4, 7, 11)
TOKENS = 128  # one tile, since FP8 with a scale for a head has one for all of dS
SHOWN = (NONE, CENTRED, MATCHED, HIGH, CENTRED_HIGH, BOTH, BOTH_OF_P)
# FP8 with sums of Hopper's tensor cores, as they are or in two levels: O is flushed at every tile;
# matched and with dS in BF16, so that the sums are what leaks
FP8 = "Q=e4m3fn K=e4m3fn V=e4m3fn P=e4m3fn P_B=e4m3fn"
SUMS = f"{FP8} PV.sum=hopper:e4m3fn S.sum=hopper:e4m3fn"
TWO_LEVEL = {
    "FP8 without scales, sums in FP32": FP8,
    "... sums of Hopper's tensor cores": SUMS,
    "... in two levels": f"{SUMS} flushed_tiles=1",
}
CAPTION = (
    "Parts of the row sums of dS by route, as rms over the rms of the rows' sums of |dS|: the error"
    " of what delta reads as O (1), P of the backward that is not the forward's (2), a row sum in"
    " few bits (3), and the rounding of dS itself. Real tensors of all-MiniLM-L6-v2; bars: 95 % t"
    " intervals over layers and heads, geometric."
)
BF16_ROWS = 2e-3  # what the rounding of dS to BF16 leaves, at most
NAMES = {name: name.replace("_", " ") for name in ROUTES} | {"rounding": "dS's rounding"}
Cells = dict[tuple[str, str], dict[str, dict[int, float]]]  # (recipe, cure) -> column -> by cell


def arithmetics(quick: bool) -> list[tuple[str, str]]:
    """Return the recipes and cures that are measured."""
    names = ("nvfp4",) if quick else tuple(RECIPES)
    return [(name, cure) for name in names for cure in SHOWN]


def parts(quick: bool) -> int:
    """Return the number of parts in which progress is told."""
    return len(arithmetics(quick)) + len(TWO_LEVEL)


@lru_cache(2)
def tensors(quick: bool) -> list[tuple[np.ndarray, ...]]:
    """Return q, k, v and dO of some heads of every layer, (1, T, N, H), of each layer."""
    found = []
    for layer in read_layers(sample_path(), layer="*"):
        assert layer.do is not None
        size = slice(0, 64 if quick else TOKENS)
        heads = HEADS[:1] if quick else HEADS
        own = (layer.q, layer.k, layer.v, layer.do)
        found.append(tuple(x[:1, size][:, :, list(heads)] for x in own))
    return found


def cells_of(text: str, quick: bool, **call: Any) -> dict[str, dict[int, float]]:
    """Return every number by cell, of changes of fa2-bf16."""
    plan = Plan.preset("fa2-bf16").changed(text)
    found: dict[str, dict[int, float]] = {name: {} for name in COLUMNS}
    for own in tensors(quick):
        for head in range(own[0].shape[2]):
            alone = [x[:, :, head : head + 1] for x in own]
            for name, value in measured_call(plan, *alone[:4], **call).items():
                found[name][len(found[name])] = value
    return found


def measured(progress: Progress, quick: bool) -> Static:
    """Return the verdicts and the picture of all recipes on real tensors."""
    found: Cells = {}
    for done, (name, cure) in enumerate(arithmetics(quick)):
        found[name, cure] = cells_of(words(name, cure), quick)
        progress(done + 1)
    return Static(
        verdicts=list(verdicts(found, quick)),
        title="Without training: what leaks, on real tensors",
        figures=[("Which route leaks?", picture(found), CAPTION)],
    )


def estimate(values: Mapping[int, float]) -> Estimate:
    """Return the geometric mean over cells, or the arithmetic one where a number is 0 or less."""
    return positive(values) if min(values.values()) >= 0 else arithmetic(values)


def verdicts(found: Cells, quick: bool) -> Sequence[Verdict]:
    """Return whether rows of dS sum to zero: without a cure, cured, and with sums in two levels."""
    told = []
    for (name, cure), cells in found.items():
        if cure == NONE:
            told.append(_leak(RECIPES[name].title, cells))
        if cure == CENTRED_HIGH:
            kept = estimate(cells["rows"])
            claim = f"centered, dS in BF16: rows sum to zero, within {BF16_ROWS:g} by dS's rounding"
            told.append(
                verdict_on(
                    "static",
                    claim,
                    RECIPES[name].title,
                    (0.0, BF16_ROWS),
                    f"rows {interval(kept)}",
                    kept,
                )
            )
    if not quick:
        told += [mean_key(name) for name in (NONE, CENTRED, BOTH, BOTH_OF_P)]
        told += [rounded_sums(name, found[name, MATCHED]) for name in PLAIN]
        for title, text in TWO_LEVEL.items():
            told.append(_leak(title, cells_of(text, quick, block_q=64, block_k=32)))
    return told


def _leak(case: str, cells: Mapping[str, Mapping[int, float]]) -> Verdict:
    """Return the verdict on rows that do not sum to zero, with the parts of their sums."""
    rows = estimate(cells["rows"])
    each = [f"{NAMES[name]} {number(estimate(cells[name]).mean)}" for name in ROUTES]
    claim = f"rows of dS sum to zero, within {BF16_ROWS:g}"
    measured = f"rows {interval(rows)} (n = {rows.seeds}); {', '.join(each)}"
    return verdict_on("static", claim, case, (0.0, BF16_ROWS), measured, rows)


def rounded_sums(name: str, matched: Mapping[str, Mapping[int, float]]) -> Verdict:
    """Return whether row sums of P after its cast leave the rows of a matched dS as they are."""
    own = cells_of(words(name, OF_ROUNDED), quick=False)
    over, third = ratio(own["rows"], matched["rows"]), estimate(own["route_3"])
    before = number(estimate(matched["route_3"]).mean)
    return verdict_on(
        "static",
        "matched: row sums of P after its cast leave the row sums of dS within 5 %",
        RECIPES[name].title,
        SAME,
        f"{interval(over)} times (n = {over.seeds}); route 3 {interval(third)}, before {before}",
        over,
    )


def mean_key(cure: str) -> Verdict:
    """Return whether the term of the mean key, 0 in exact arithmetic, leaves the error of dQ."""
    plan = Plan.preset("fa2-bf16").changed(words("int8", cure))
    without: dict[int, float] = {}
    added: dict[int, float] = {}
    for own in tensors(False):
        for head in range(own[0].shape[2]):
            alone = [x[:, :, head : head + 1] for x in own]
            n = len(without)
            without[n], added[n] = mean_key_errors(plan, *alone)
    over = ratio(added, without)
    measured = f"{interval(over)} times the error of dQ, {interval(positive(without))} without it"
    claim = "INT8, smoothed K: rowsum(dS) mean(K) added to dQ leaves its error within 5 %"
    return verdict_on("static", claim, CURES[cure].title, SAME, measured, over)


def picture(found: Cells) -> Picture:
    """Draw the routes of every recipe without a cure."""
    names = [name for name, cure in found if cure == NONE]
    figure, ((ax,),) = canvas(1.2 + 0.42 * len(names), 1, 1)
    for n, (route, colour) in enumerate(zip(ROUTES, COLOURS, strict=False)):
        own = [estimate(found[name, NONE][route]) for name in names]
        y = [i + 0.18 * (n - 1.5) for i in range(len(names))]
        bars = [[e.mean - e.low for e in own], [e.high - e.mean for e in own]]
        ax.errorbar(
            [e.mean for e in own],
            y,
            xerr=np.nan_to_num(np.maximum(bars, 0.0)),
            fmt="o",
            color=colour,
            ms=4.5,
            lw=1.2,
            capsize=2,
            label=NAMES[route],
        )
    ax.set(xscale="log", xlabel="rms of a part of the row sums of dS, over that of sums of |dS|")
    ax.set_yticks(range(len(names)), [RECIPES[name].title for name in names], fontsize=9)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(colors=INK)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    return figure
