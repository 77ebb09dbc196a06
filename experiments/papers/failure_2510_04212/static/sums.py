"""Rows 5 and 6 of the paper's table: rowsum(dO O) = rowsum(P dP) needs one P, and rowsum(P) = 1.

A kernel recomputes P_B = exp(S_B - L) in its backward. If its S_B are not the forward's scores,
rounded where they are not or the reverse, rowsum(P_B) is not 1, and with delta = rowsum(P_B dP) a
row of dS = P_B (dP - delta) sums to delta (1 - rowsum P_B), not to 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.attention import DeltaFrom, Plan, Record, Site, examine
from roundscope.experiments.framework.estimates import Estimate, factor
from roundscope.experiments.framework.figures.series import legend
from roundscope.experiments.framework.verdicts import Verdict, Word, interval
from roundscope.tools.report.pictures import COLOURS, INK, canvas
from roundscope.tools.tensors.layers import Layer, read_layers, sample_path

PLANS = {
    "qiu-yao": "BF16 scores forward, FP32 backward",
    "qiu-yao, FP32 scores": "FP32 scores both ways",
    "fa2-bf16": "FP32 scores both ways",
    "baseline-bf16": "BF16 scores both ways",
}
OF_SCORES = (Site.S, Site.SCALED, Site.M, Site.X, Site.DM, Site.L)
QUERIES, EVERY = 128, 2  # of the sample's 512 queries, with all of its keys; and every other head
OPERANDS = (DeltaFrom.OUT, DeltaFrom.P_DP, DeltaFrom.CENTRED)
ONE = 1e-5  # a sum of FP32 numbers within this of 1 is 1
BINS = np.logspace(-9, 0, 91)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What rows sum to.

    lost     by preset: rowsum(P_B) - 1, over layers, heads, rows
    rest     by preset and operand of delta: rms over a head's rows of  rowsum(dS) / rowsum |dS|,
             over heads
    """

    lost: dict[str, np.ndarray]
    rest: dict[tuple[str, DeltaFrom], Estimate]


def measure() -> Sums:
    """Measure both layers of the shipped sample, as one key tile."""
    layers, lost, rest = read_layers(sample_path()), {}, {}
    for name in PLANS:
        for operand in OPERANDS:
            seen = [_rows(layer, replace(_plan(name), delta_from=operand)) for layer in layers]
            lost[name] = np.concatenate([p.ravel() for p, _ in seen])
            by_head = np.concatenate([np.sqrt((r**2).mean(-1)).ravel() for _, r in seen])
            rest[name, operand] = factor(dict(enumerate(by_head.tolist())))
    return Sums(lost=lost, rest=rest)


def _plan(name: str) -> Plan:
    made = Plan.preset(name.partition(",")[0])
    for site in OF_SCORES if "," in name else ():
        made = made.at(site, "fp32")
    return made


def _rows(x: Layer, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return (rowsum(P_B) - 1, rowsum(dS) / rowsum |dS|) of every row, (B, N, T)."""
    s = x.k.shape[1]
    record = Record(events=(Site.EXP_B, Site.DS))
    assert x.do is not None
    q, do = (y[:, :QUERIES, ::EVERY] for y in (x.q, x.do))
    k, v = (y[:, :, ::EVERY] for y in (x.k, x.v))
    trace = examine(
        q, k, v, do, plan=plan, block_q=s, block_k=s, scale=x.scale, record=record
    ).trace
    p, ds = (np.asarray(trace.events[site][1]) for site in ("EXP_B", "DS"))
    size = np.abs(ds).sum(-1)
    return p.sum(-1) - 1.0, ds.sum(-1) / np.where(size > 0.0, size, np.inf)


def judged(m: Sums) -> Iterator[Verdict]:
    """Yield verdicts on the identity of row 5, preset by preset, and on what CENTRED does."""
    sizes = f"MiniLM, 2 layers x {12 // EVERY} heads x {QUERIES} rows"
    verdict = partial(Verdict, figure="rows 5, 6", sizes=sizes)
    for name, words in PLANS.items():
        x = m.lost[name]
        rms, most = float(np.sqrt((x**2).mean())), float(np.abs(x).max())
        yield verdict(
            claim="rowsum(P) = 1 in the backward",
            case=f"{name}: {words}",
            word=Word.AGREES if most < ONE else Word.CONTRADICTS,
            measured=f"rms of rowsum(P_B) - 1: {rms:.2g}, largest {most:.2g}",
        )
    for name in PLANS:
        out, p_dp = (m.rest[name, operand] for operand in (DeltaFrom.OUT, DeltaFrom.P_DP))
        agrees = p_dp.high < out.low
        otherwise = Word.CONTRADICTS if p_dp.low > out.high else Word.UNDECIDED
        note = "both P must be one: with two, P_DP trades the error of O for 1 - rowsum(P_B)"
        yield verdict(
            claim="row 5: delta = rowsum(P dP) leaves less in rowsum(dS) than rowsum(dO O)",
            case=name,
            word=Word.AGREES if agrees else otherwise,
            measured=f"rowsum(dS) / rowsum |dS|: P_DP {interval(p_dp)}, OUT {interval(out)}",
            estimate=p_dp,
            note="" if agrees else note,
        )
    centred = {name: m.rest[name, DeltaFrom.CENTRED] for name in PLANS}
    exact = [e for name, e in centred.items() if _plan(name)[Site.DS].format.precision == 24]
    yield verdict(
        claim="ours: delta = rowsum(P dP) / rowsum(P) leaves nothing, whatever P sums to",
        case="all four",
        word=Word.AGREES if all(e.high < ONE for e in exact) else Word.CONTRADICTS,
        measured="; ".join(f"{name} {interval(e)}" for name, e in centred.items()),
        estimate=centred["qiu-yao"],
        note="in fa2-bf16 and baseline-bf16 dS is rounded to BF16: that is what is left",
    )


def picture(m: Sums) -> Figure:
    """Draw how far rowsum(P_B) is from 1, and what is left of rowsum(dS)."""
    figure, ((left, right),) = canvas(3.6, 1, 2, width_ratios=[1, 1.5])
    for (name, x), colour in zip(m.lost.items(), COLOURS, strict=False):
        look: dict[str, Any] = {"histtype": "step", "lw": 1.5}
        if "," in name:  # the same rows as fa2-bf16's, so it is drawn below them
            look = {"histtype": "stepfilled", "alpha": 0.45, "lw": 0}
        left.hist(np.maximum(np.abs(x), BINS[0]), BINS, color=colour, label=name, **look)
    left.set_xscale("log")
    left.set_xlabel("|rowsum(P) - 1| in the backward")
    left.set_ylabel("rows")
    for n, (operand, hatch) in enumerate(zip(OPERANDS, ("", "//", ".."), strict=True)):
        for i, (name, colour) in enumerate(zip(PLANS, COLOURS, strict=False)):
            e = m.rest[name, operand]
            at, look = i + 0.27 * (n - 1), {"hatch": hatch, "edgecolor": "white", "lw": 0}
            right.bar(at, e.mean, 0.25, color=colour, alpha=0.9 - 0.25 * n, **look)
            words = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": INK}
            right.text(at, e.mean * 1.25, operand.name, rotation=90, **words)
    right.set_yscale("log")
    right.set_ylim(1e-8, 0.2)
    right.set_xticks(range(len(PLANS)), [name.replace(", ", ",\n") for name in PLANS])
    right.set_ylabel("rms of rowsum(dS) / rowsum |dS|")
    legend(figure, left, 4)
    return figure
