"""What the tie windows say of the paper's rows with several P = 1, and a picture of them."""

import math

import numpy as np
from matplotlib.figure import Figure

from roundscope.experiments.framework.estimates import Estimate
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge
from roundscope.experiments.papers.failure_2510_04212.static.closed import FORMATS
from roundscope.experiments.papers.failure_2510_04212.static.ties import (
    CONSTRUCTED,
    SAMPLE,
    SCORES,
    Input,
    Ties,
    formula,
    gaps,
    window,
)
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, QUIET, canvas

FIGURE = "Alg. 1, ties"
Found = dict[tuple[str, str, str], Ties]
SIXTEEN = (8.0, 32.0)  # "16 times": within a factor of 2
BIASED = (0.05, 0.5)  # ulps: the range of a bias; a tie in every other sum gives 0.25
NONE = (-0.05, 0.05)
SINK, PAIRS = CONSTRUCTED


def judged(found: Found) -> list[Verdict]:
    """Return verdicts on the windows, on the shares of rows, and on the bias there."""
    wider = [_wider(found, scores) for scores in SCORES]
    return [
        _windows(),
        *wider,
        _bf16_scores(found),
        _sink(found),
        *(_pairs(found, f) for f in FORMATS),
        _real(found),
    ]


def _windows() -> Verdict:
    far = {f: abs(window(f) / formula(f) - 1.0) for f in FORMATS}
    shown = ", ".join(f"{f} {window(f):.5g}" for f in FORMATS)
    return _verdict(
        "ours: P rounds to 1 up to a gap of -ln(1 - 2^-(p+1))",
        "bisection through exp",
        "",
        Word.AGREES if max(far.values()) < 1e-12 else Word.CONTRADICTS,
        f"{shown}; formula within {max(far.values()):.1g}",
        "the paper's v4 counts gaps up to 1e-3 as ties: of BF16's window it misses the upper half",
    )


def ratio_of(many: Ties, few: Ties) -> Estimate:
    """Return the ratio of two counts among the same rows.

    Its 95 % interval takes rows as independent: exp(log ratio +- 1.96 sqrt(1/a + 1/b)).
    """
    if not (many.rows and few.rows):
        return Estimate(mean=math.nan, low=math.nan, high=math.nan, seeds=0)
    centre = many.rows / few.rows
    half = math.exp(1.96 * math.sqrt(1.0 / many.rows + 1.0 / few.rows))
    return Estimate(mean=centre, low=centre / half, high=centre * half, seeds=1)


def _wider(found: Found, scores: str) -> Verdict:
    rows = {f: found[SAMPLE, f, scores].rows for f in FORMATS}
    e = ratio_of(found[SAMPLE, "e4m3fn", scores], found[SAMPLE, "bf16", scores])
    note = "rows counted as independent"
    if scores == "BF16":
        note = "BF16 scores tie exactly, whatever P's format"
    return _verdict(
        "ours: several P = 1 are 16 times as frequent with P in E4M3 as in BF16",
        f"{SAMPLE}, {scores} scores",
        _SAMPLE,
        judge(e, SIXTEEN),
        f"{interval(e, 'x')}; rows: " + ", ".join(f"{f} {n}" for f, n in rows.items()),
        note,
        e,
    )


def _bf16_scores(found: Found) -> Verdict:
    low, high = (found[SAMPLE, "bf16", scores] for scores in ("BF16", "FP32"))
    e = ratio_of(low, high)
    return _verdict(
        "ours: BF16 scores make ties common, FP32 scores rare",
        f"{SAMPLE}, P in BF16",
        _SAMPLE,
        judge(e, (2.0, math.inf)),
        f"{low.rows} rows against {high.rows}: {interval(e, 'x')}",
        "",
        e,
    )


def _sink(found: Found) -> Verdict:
    one, two = (
        [found[name, f, scores].share.mean for f in FORMATS for scores in SCORES]
        for name in (SINK, PAIRS)
    )
    word = Word.AGREES if min(one) > 0.0 else Word.DEPENDS if min(two) > 0.0 else Word.CONTRADICTS
    return _verdict(
        "sinks raise the chance of several P = 1 (App. D)",
        "a sink key 10 above the rest; two 12 above",
        "all formats",
        word,
        f"one sink: {max(one):.0%} of rows, two equal ones: {min(two):.0%}",
        "one sink is one P = 1: no tie",
    )


def _pairs(found: Found, f: str) -> Verdict:
    e = found[PAIRS, f, "BF16"].tied
    note = ""
    if f == "e4m3fn":
        note = (
            "P of the other keys, near e^-12, is below half the smallest E4M3 number: no residual,"
            " no bias"
        )
    return _verdict(
        "several P = 1 and V of one sign: P V is biased away from zero",
        f"two equal sink keys, P in {f}",
        "V < 0, 64 keys",
        judge(e, BIASED),
        f"{interval(e)} ulp of BF16; half of the sums tie: 0.25 less the residual",
        note,
        e,
    )


def _real(found: Found) -> Verdict:
    tied, others = (getattr(found[SAMPLE, "bf16", "BF16"], name) for name in ("tied", "others"))
    word = Word.CONTRADICTS if tied.inside(*NONE) else judge(tied, BIASED)
    return _verdict(
        "several P = 1 are enough for a bias of P V",
        f"{SAMPLE}, qiu-yao",
        _SAMPLE,
        word,
        f"{interval(tied)} ulp away from zero in such rows, {interval(others)} in the rest",
        "there other P are not small and V has both signs: P = 1 alone does not make the bias",
        tied,
    )


_SAMPLE = "2 layers x 12 heads x 512 rows"


def _verdict(
    claim: str,
    case: str,
    sizes: str,
    word: Word,
    measured: str,
    note: str = "",
    estimate: Estimate | None = None,
) -> Verdict:
    return Verdict(
        figure=FIGURE,
        claim=claim,
        case=case,
        sizes=sizes,
        word=word,
        measured=measured,
        note=note,
        estimate=estimate,
    )


def picture(inputs: list[Input], found: Found) -> Figure:
    """Draw rows by the gap of their two largest scores with the windows, and the bias of P V.

    The bias is that in tied rows.
    """
    figure, ((left, right),) = canvas(3.7, 1, 2, width_ratios=[1.25, 1])
    gap = gaps([x for x in inputs if x.name == SAMPLE])
    share_below = np.arange(1, gap.size + 1) / gap.size
    left.plot(
        np.maximum(gap, 1e-6),
        share_below,
        color=QUIET,
        lw=1.4,
        label="rows whose top two scores are closer",
    )
    for f, colour, marker in zip(FORMATS, COLOURS, MARKERS, strict=False):
        left.axvline(formula(f), color=colour, lw=0.9, ls=":")
        for scores, face in (("FP32", colour), ("BF16", "white")):
            share = found[SAMPLE, f, scores].share.mean
            left.plot(
                formula(f),
                share,
                marker,
                color=colour,
                mfc=face,
                ms=6.5,
                label=f"P in {f}" if scores == "FP32" else None,
            )
    left.plot([], [], "o", color=INK, mfc="white", label="hollow: BF16 scores")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlim(1e-4, 1.0)
    left.set_ylim(1e-4, 1.0)
    left.set_xlabel("gap of the two largest scores; dotted: largest gap with P = 1")
    left.set_ylabel("share of rows (MiniLM)")
    left.legend(fontsize=8, framealpha=1.0, edgecolor="none", loc="lower right")
    for n, f in enumerate(FORMATS):
        for k, (name, label, marker) in enumerate(
            ((PAIRS, "two equal sinks, V < 0", "o"), (SAMPLE, "MiniLM", "s"))
        ):
            e = found[name, f, "BF16"].tied
            right.errorbar(
                n + 0.2 * k - 0.1,
                e.mean,
                [[e.mean - e.low], [e.high - e.mean]],
                fmt=marker,
                color=COLOURS[k],
                ms=5.5,
                capsize=3,
                label=label if n == 0 else None,
            )
    right.axhline(0.0, color=INK, lw=0.7)
    right.set_xticks(range(len(FORMATS)), [f"P in\n{f}" for f in FORMATS])
    right.set_ylim(-0.06, 0.36)
    right.set_ylabel("mean error of P V away from zero, ulps")
    right.set_title("rows with several P = 1", fontsize=9.5, loc="left")
    right.legend(fontsize=8.5, frameon=False, loc="upper right")
    return figure
