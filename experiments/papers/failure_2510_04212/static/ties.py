"""Algorithm 1: how often several P of a row are 1, by the format of P, and what that does to P V.

It is measured on real and on constructed tensors. P = exp(S - m) rounds to 1 up to a gap of -ln(1 -
2^-(p+1)) below the maximum (PAPERS 1.5, edge case 4), which is 16 times as wide in E4M3 as in BF16.
The plans are qiu-yao with P in the format and one key tile, and the same with FP32 scores, as
production kernels have them.

Rows 5 and 6: rowsum(dO O) = rowsum(P dP) needs one P, and rowsum(P) = 1. A kernel recomputes
P_B = exp(S_B - L); if its S_B are not the forward's scores, a row of dS = P_B (dP - delta) with
delta = rowsum(P_B dP) sums to delta (1 - rowsum P_B), not to 0.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope import emu
from roundscope.attention import DeltaFrom, Plan, Record, Site, examine
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.emu.api import ulp_of
from roundscope.emu.formats.format import format_named
from roundscope.experiments.framework.estimates import Estimate, factor, mean
from roundscope.experiments.framework.figures.series import legend
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge, verdict_on
from roundscope.experiments.papers.failure_2510_04212.static.bias import FORMATS, bars
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, QUIET, canvas
from roundscope.tools.tensors.layers import Layer, read_layers, sample_path

SIXTEEN = (8.0, 32.0)  # "16 times": within a factor of 2
BIASED = (0.05, 0.5)  # ulps: the range of a bias; a tie in every other sum gives 0.25
NONE = (-0.05, 0.05)
SAMPLE, SINK, PAIRS = "MiniLM", "sink", "repeated-maximum"
SCORES = {"BF16": (), "FP32": (Site.S, Site.SCALED, Site.M, Site.X)}
DRAWS, TOKENS, HEADS, FEATURES = 2, 64, 16, 64  # 64 keys: one repeated pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """q, k, v (1, T, N, H) and the scale; attention is causal if the source's is."""

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """Rows with several P = 1, of one kind of input, format of P and format of scores.

    share           the share of such rows, over heads
    rows            how many of them there are
    tied, others    mean error of P V away from zero in ulps of BF16, in such rows and others
    """

    share: Estimate
    rows: int
    tied: Estimate
    others: Estimate


Found = dict[tuple[str, str, str], Ties]  # kind of input, format of P, format of scores


def window(f: str) -> float:
    """Return the largest gap whose exp rounds to 1, by bisection through emu.exp."""
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if float(emu.exp(-middle, f)) == 1.0 else (low, middle)
    return low


def inputs() -> list[Input]:
    """Return both layers of the shipped sample, then draws of the constructed families."""
    found = [
        Input(name=SAMPLE, q=x.q, k=x.k, v=x.v, scale=x.scale or x.q.shape[3] ** -0.5)
        for x in read_layers(sample_path())
    ]
    for family in (SINK, PAIRS):
        for seed in range(DRAWS):
            size = {"queries": TOKENS, "keys": TOKENS, "heads": HEADS, "features": FEATURES}
            x = FAMILIES[family](Source(family=family, seed=seed, **size))
            q, k, v = (np.asarray(emu.round_to(x[role], "bf16"))[None] for role in "qkv")
            found.append(Input(name=family, q=q, k=k, v=v, scale=FEATURES**-0.5))
    return found


def plan(f: str, scores: str) -> Plan:
    """Return qiu-yao with P in the format, saturating, and its scores in BF16 or FP32."""
    plan = Plan.preset("qiu-yao").at(Site.P, f, overflow="saturate")
    for site in SCORES[scores]:
        plan = plan.at(site, "fp32")
    return plan


def measure(found: list[Input]) -> Found:
    """Return the ties by (kind of input, format of P, format of scores)."""
    return {
        (name, f, scores): _ties([x for x in found if x.name == name], plan(f, scores))
        for name in list(dict.fromkeys(x.name for x in found))
        for f in FORMATS
        for scores in SCORES
    }


def _ties(own: list[Input], plan: Plan) -> Ties:
    heads = list(enumerate(head for x in own for head in _heads(x, plan)))
    return Ties(
        share=mean({i: float(several.mean()) for i, (several, _) in heads}),
        rows=int(sum(several.sum() for _, (several, _) in heads)),
        tied=mean(
            {i: float(away[several].mean()) for i, (several, away) in heads if several.any()}
        ),
        others=mean(
            {i: float(away[~several].mean()) for i, (several, away) in heads if not several.all()}
        ),
    )


def _heads(x: Input, plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return per head its rows with several P = 1, and the error of P V away from zero in ulps."""
    s = x.k.shape[1]
    record = Record(ones=(Site.P,), events=(Site.PV,))
    trace = examine(
        x.q, x.k, x.v, plan=plan, block_q=s, block_k=s, scale=x.scale, record=record
    ).trace
    before, after = (np.asarray(y)[0, :, 0] for y in trace.events["PV"])
    away = np.sign(before) * (after - before) / np.asarray(ulp_of(before, "bf16"))
    return list(zip(trace.ones["P"][0, :, 0] > 1, away, strict=True))


def gaps(own: list[Input]) -> np.ndarray:
    """Return the sorted distances of the two largest scores of every row, in binary64."""
    distances = []
    for x in own:
        s = x.scale * np.einsum("btnh,bsnh->bnts", x.q.astype(float), x.k.astype(float))
        s = np.sort(s, axis=-1)
        distances.append((s[..., -1] - s[..., -2]).ravel())
    return np.sort(np.concatenate(distances))


def formula(f: str) -> float:
    """Return the width of the window: -ln(1 - 2^-(p+1))."""
    return float(-np.log1p(-(2.0 ** -(format_named(f).precision + 1))))


def ratio_of(many: Ties, few: Ties) -> Estimate:
    """Return a ratio of counts, exp(log ratio +- 1.96 sqrt(1/a + 1/b)), as of independent rows."""
    if not (many.rows and few.rows):
        return Estimate(mean=math.nan, low=math.nan, high=math.nan, seeds=0)
    centre = many.rows / few.rows
    half = math.exp(1.96 * math.sqrt(1.0 / many.rows + 1.0 / few.rows))
    return Estimate(mean=centre, low=centre / half, high=centre * half, seeds=1)


def judged(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the windows, on the shares of rows, and on the bias there."""
    verdict = partial(verdict_on, "Alg. 1, ties")
    sample = partial(verdict, sizes="2 layers x 12 heads x 512 rows")
    far = max(abs(window(f) / formula(f) - 1.0) for f in FORMATS)
    shown = ", ".join(f"{f} {window(f):.5g}" for f in FORMATS)
    yield verdict(
        "ours: P rounds to 1 up to a gap of -ln(1 - 2^-(p+1))",
        "bisection through exp",
        far < 1e-12,
        f"{shown}; formula within {far:.1g}",
        note="the paper's v4 counts gaps up to 1e-3 as ties: of BF16's window it misses the upper"
        " half",
    )
    for scores in SCORES:
        rows = ", ".join(f"{f} {found[SAMPLE, f, scores].rows}" for f in FORMATS)
        e = ratio_of(found[SAMPLE, "e4m3fn", scores], found[SAMPLE, "bf16", scores])
        tie = "BF16 scores tie exactly, whatever P's format"
        yield sample(
            claim="ours: several P = 1 are 16 times as frequent with P in E4M3 as in BF16",
            case=f"{SAMPLE}, {scores} scores",
            holds=SIXTEEN,
            measured=f"{interval(e, 'x')}; rows: {rows}",
            estimate=e,
            note=tie if scores == "BF16" else "rows counted as independent",
        )
    low, high = (found[SAMPLE, "bf16", scores] for scores in ("BF16", "FP32"))
    e = ratio_of(low, high)
    yield sample(
        claim="ours: BF16 scores make ties common, FP32 scores rare",
        case=f"{SAMPLE}, P in BF16",
        holds=(2.0, math.inf),
        measured=f"{low.rows} rows against {high.rows}: {interval(e, 'x')}",
        estimate=e,
    )
    one, two = (
        [found[name, f, scores].share.mean for f in FORMATS for scores in SCORES]
        for name in (SINK, PAIRS)
    )
    yield verdict(
        "sinks raise the chance of several P = 1 (App. D)",
        "a sink key 10 above the rest; two 12 above",
        Word.AGREES if min(one) > 0.0 else (Word.DEPENDS if min(two) > 0.0 else Word.CONTRADICTS),
        f"one sink: {max(one):.0%} of rows, two equal ones: {min(two):.0%}",
        note="one sink is one P = 1: no tie",
        sizes="all formats",
    )
    lost = (
        "P of the other keys, near e^-12, is below half the smallest E4M3 number: no residual,"
        " no bias"
    )
    for f in FORMATS:
        e = found[PAIRS, f, "BF16"].tied
        yield verdict(
            "several P = 1 and V of one sign: P V is biased away from zero",
            f"two equal sink keys, P in {f}",
            BIASED,
            f"{interval(e)} ulp of BF16; half of the sums tie: 0.25 less the residual",
            e,
            lost if f == "e4m3fn" else "",
            sizes="V < 0, 64 keys",
        )
    tied, others = found[SAMPLE, "bf16", "BF16"].tied, found[SAMPLE, "bf16", "BF16"].others
    yield sample(
        claim="several P = 1 are enough for a bias of P V",
        case=f"{SAMPLE}, qiu-yao",
        holds=Word.CONTRADICTS if tied.inside(*NONE) else judge(tied, BIASED),
        measured=f"{interval(tied)} ulp away from zero in such rows, {interval(others)} in the"
        " rest",
        estimate=tied,
        note="there other P are not small and V has both signs: P = 1 alone does not make the bias",
    )


def picture(inputs: list[Input], found: Found) -> Figure:
    """Draw rows by the gap of their two largest scores, and the bias of P V in tied rows."""
    figure, ((left, right),) = canvas(3.7, 1, 2, width_ratios=[1.25, 1])
    gap = gaps([x for x in inputs if x.name == SAMPLE])
    share_below = np.arange(1, gap.size + 1) / gap.size
    words = "rows whose top two scores are closer"
    left.plot(np.maximum(gap, 1e-6), share_below, color=QUIET, lw=1.4, label=words)
    for f, colour, marker in zip(FORMATS, COLOURS, MARKERS, strict=False):
        left.axvline(formula(f), color=colour, lw=0.9, ls=":")
        for scores, face in (("FP32", colour), ("BF16", "white")):
            share, label = found[SAMPLE, f, scores].share.mean, f"P in {f}"
            look: dict[str, Any] = {"color": colour, "mfc": face, "ms": 6.5}
            look["label"] = label if scores == "FP32" else None
            left.plot(formula(f), share, marker, **look)
    left.plot([], [], "o", color=INK, mfc="white", label="hollow: BF16 scores")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlim(1e-4, 1.0)
    left.set_ylim(1e-4, 1.0)
    left.set_xlabel("gap of the two largest scores; dotted: largest gap with P = 1")
    left.set_ylabel("share of rows (MiniLM)")
    left.legend(fontsize=8, framealpha=1.0, edgecolor="none", loc="lower right")
    kinds = (PAIRS, "two equal sinks, V < 0", "o"), (SAMPLE, "MiniLM", "s")
    for n, f in enumerate(FORMATS):
        for k, (name, label, marker) in enumerate(kinds):
            e = found[name, f, "BF16"].tied
            look = {"fmt": marker, "color": COLOURS[k], "ms": 5.5, "capsize": 3}
            look["label"] = label if n == 0 else None
            right.errorbar(n + 0.2 * k - 0.1, e.mean, bars([e]), **look)
    right.axhline(0.0, color=INK, lw=0.7)
    right.set_xticks(range(len(FORMATS)), [f"P in\n{f}" for f in FORMATS])
    right.set_ylim(-0.06, 0.36)
    right.set_ylabel("mean error of P V away from zero, ulps")
    right.set_title("rows with several P = 1", fontsize=9.5, loc="left")
    right.legend(fontsize=8.5, frameon=False, loc="upper right")
    return figure


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
    rest     by preset and operand of delta: rms of rowsum(dS) / rowsum |dS|, over heads
    """

    lost: dict[str, np.ndarray]
    rest: dict[tuple[str, DeltaFrom], Estimate]


def measure_sums() -> Sums:
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


def judged_sums(m: Sums) -> Iterator[Verdict]:
    """Yield verdicts on the identity of row 5, preset by preset, and on what CENTRED does."""
    sizes = f"MiniLM, 2 layers x {12 // EVERY} heads x {QUERIES} rows"
    verdict = partial(verdict_on, "rows 5, 6", sizes=sizes)
    for name, words in PLANS.items():
        x = m.lost[name]
        rms, most = float(np.sqrt((x**2).mean())), float(np.abs(x).max())
        yield verdict(
            "rowsum(P) = 1 in the backward",
            f"{name}: {words}",
            most < ONE,
            f"rms of rowsum(P_B) - 1: {rms:.2g}, largest {most:.2g}",
        )
    for name in PLANS:
        out, p_dp = (m.rest[name, operand] for operand in (DeltaFrom.OUT, DeltaFrom.P_DP))
        agrees = p_dp.high < out.low
        otherwise = Word.CONTRADICTS if p_dp.low > out.high else Word.UNDECIDED
        note = "both P must be one: with two, P_DP trades the error of O for 1 - rowsum(P_B)"
        yield verdict(
            "row 5: delta = rowsum(P dP) leaves less in rowsum(dS) than rowsum(dO O)",
            name,
            Word.AGREES if agrees else otherwise,
            f"rowsum(dS) / rowsum |dS|: P_DP {interval(p_dp)}, OUT {interval(out)}",
            p_dp,
            "" if agrees else note,
        )
    centred = {name: m.rest[name, DeltaFrom.CENTRED] for name in PLANS}
    exact = [e for name, e in centred.items() if _plan(name)[Site.DS].format.precision == 24]
    yield verdict(
        "ours: delta = rowsum(P dP) / rowsum(P) leaves nothing, whatever P sums to",
        "all four",
        all(e.high < ONE for e in exact),
        "; ".join(f"{name} {interval(e)}" for name, e in centred.items()),
        centred["qiu-yao"],
        "in fa2-bf16 and baseline-bf16 dS is rounded to BF16: that is what is left",
    )


def picture_sums(m: Sums) -> Figure:
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
