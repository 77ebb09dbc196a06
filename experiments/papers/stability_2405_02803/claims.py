"""What the measurements say of Fig. 3 to 6: formats, the factor of 10, lengths, and tiles.

At the end is what the paper does not have: controls of the cause of the excess in BF16 with many
key tiles, and the sign of the error, of which arXiv 2510.04212 speaks, beside its magnitude.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from roundscope.experiments.framework.estimates import Estimate, Values, exponent, mean, ratio
from roundscope.experiments.framework.verdicts import (
    FALLS,
    GROWS,
    LARGER,
    SAME,
    SMALLER,
    TENFOLD,
    Verdict,
    Word,
    interval,
    judge,
    number,
    together,
    verdict_on,
)
from roundscope.experiments.papers.stability_2405_02803.measuring import (
    BASELINE,
    CONTROLS,
    FAMILIES,
    FORMATS,
    ROW_SUM,
    TILED,
    Column,
    Point,
    Results,
    Scale,
    at,
    biased,
    narrow,
    queries,
)
from roundscope.tools.sweep.measuring.metrics import METRICS

OWN = "unfused in the same formats"
TENFOLD_CLAIM = "in BF16 tiled deviates about 10x as much as unfused"
GROWTH = (  # of Fig. 5: emulation, input, relative to the output's size
    ("ops:bf16", "gaussian", False),
    ("ops:bf16", "gaussian", True),
    ("ops:bf16", "one-signed-v", False),
    ("ops:bf16", "sink", True),
    ("sums:bf16", "gaussian", True),
    ("fa2-bf16", "gaussian", True),
    ("ops:fp32", "gaussian", True),
)


def unfused(point: Point, metric: str, baseline: str = OWN) -> Column:
    """Return a deviation of unfused attention, in a point's formats or PyTorch's (FP32 sums)."""
    if baseline == OWN:
        return point, f"unfused_{metric}"
    length = int(point["T"])
    return at(BASELINE, (length, int(point["N"])), length, str(point["input"])), metric


def excess(r: Results, point: Point, metric: str = "max_abs", baseline: str = OWN) -> Estimate:
    """Return a deviation over that of unfused attention."""
    return r.ratio((point, metric), unfused(point, metric, baseline))


def figures_3_and_4(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield: the deviation falls with mantissa bits, and tiled deviates 10 times as unfused."""
    sizes = f"T {scale.bench[0]}, tile {scale.tile}, gaussian"
    for kind in ("ops", "sums"):
        columns = [
            (at(f"{kind}:{form}", scale.bench, scale.tile), "vs_unfused_max") for form in FORMATS
        ]
        steps = [r.ratio(finer, coarser) for coarser, finer in pairwise(columns)]
        means = [f"{mean(r.values(*column)).mean:.1e}" for column in columns]
        yield verdict_on(
            "3",
            "largest |tiled - unfused| falls with mantissa bits",
            f"{kind}:FORMAT",
            together([judge(step, SMALLER) for step in steps]),
            ", ".join(" ".join(each) for each in zip(FORMATS, means, strict=True)),
            max(steps, key=lambda step: step.mean),
            "the estimate is the smallest fall from one format to the next",
            sizes=sizes,
            queries=queries(*columns),
        )
    for baseline in (OWN, BASELINE):
        for name in TILED:
            point = at(name, scale.bench, scale.tile)
            found, rms = (excess(r, point, metric, baseline) for metric in ("max_abs", "rms"))
            yield verdict_on(
                "4",
                TENFOLD_CLAIM,
                f"{name} / {baseline}",
                TENFOLD,
                f"{interval(found, 'x')} (rms {interval(rms, 'x')})",
                found,
                sizes=sizes,
                queries=queries((point, "max_abs"), unfused(point, "max_abs", baseline)),
            )
    yield anywhere(r, scale)


def anywhere(r: Results, scale: Scale) -> Verdict:
    """Return the verdict over every BF16 condition, which names those that the claim fits."""
    all_of_them = candidates(r, scale)
    fits = [c for c in all_of_them if judge(c[1], TENFOLD) is Word.AGREES]
    known = [c for c in all_of_them if c[1].seeds > 1]
    best = max(known, key=lambda c: c[1].mean, default=None)
    names = list(dict.fromkeys(label for label, *_ in fits))
    return verdict_on(
        "4",
        TENFOLD_CLAIM,
        f"all {len(known)} in BF16 that were run",
        Word.UNDECIDED if not known else Word.DEPENDS if fits else Word.CONTRADICTS,
        f"{len(fits)} within 5x to 20x; the largest is {interval(best[1], 'x')}: {best[0]}"
        if best
        else "-",
        best[1] if best else None,
        "on number of key tiles, input, what accumulates in BF16 and the baseline; about 10x:"
        f" {'; '.join(names) or 'none'}",
        sizes="T, tiles and inputs as run",
        queries=best[2] if best else (),
    )


def candidates(r: Results, scale: Scale) -> list[tuple[str, Estimate, tuple[str, ...]]]:
    """Return (words, ratio of largest deviations, queries) of every tiled BF16 condition."""
    long = [(t, scale.heads(t)) for t in scale.lengths]
    sizes = {(*size, scale.tile) for size in (*long, scale.bench)} | {
        (*scale.many, k) for k in scale.tiles
    }
    sizes |= {(*long[-1], scale.narrow), (*scale.bench, scale.narrow)}
    found = []
    for name in TILED:
        for family in FAMILIES:
            for t, n, k in sorted(s for s in sizes if s[2] < s[0]):
                point = at(name, (t, n), k, family)
                where = f"{name}, T {t}, {t // k} key tiles, {family}"
                for baseline, words in ((OWN, "its own unfused"), (BASELINE, BASELINE)):
                    asked = queries((point, "max_abs"), unfused(point, "max_abs", baseline))
                    estimate = excess(r, point, "max_abs", baseline)
                    found.append((f"{where}, to {words}", estimate, asked))
    return [c for c in found if c[1].seeds]


def figure_5(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield: largest (5a), mean and spread of (5b) deviations grow with T, and it is tiling."""

    def verdict(figure: str, claim: str, line: tuple[str, str, bool], **more: Any) -> Verdict:
        name, family, relative = line
        shrinks = "the output itself shrinks as 1 / sqrt T"
        return Verdict(
            figure=figure,
            claim=f"{claim} with T{', relative to the output' if relative else ''}",
            case=f"{name}, {family}",
            sizes=_span(scale),
            note=shrinks if not relative and family == "gaussian" else "",
            **more,
        )

    for line in GROWTH:
        points, metric = series(scale, *line[:2]), "rel_max" if line[2] else "max_abs"
        found = growth(r, scale, points, metric)
        ends = [number(mean(r.values(point, metric)).mean) for point in (points[0], points[-1])]
        yield verdict(
            "5a",
            "largest deviation grows",
            line,
            word=judge(found, GROWS),
            measured=f"T^{interval(found)}: {ends[0]} to {ends[1]}",
            estimate=found,
            queries=queries(*((point, metric) for point in points)),
        )
    for line in GROWTH[:3]:
        points = series(scale, *line[:2])
        metrics = ("rel_mean_abs", "rel_std_abs") if line[2] else ("mean_abs", "std_abs")
        both = [growth(r, scale, points, metric) for metric in metrics]
        yield verdict(
            "5b",
            "mean and std of |deviation| grow",
            line,
            word=together([judge(e, GROWS) for e in both]),
            measured=" and ".join(f"T^{interval(e)}" for e in both),
            estimate=both[0],
            queries=queries(*((point, metric) for metric in metrics for point in points)),
        )
    yield by_tiling(r, scale)


def series(scale: Scale, name: str, family: str, *, tiled: bool = True) -> list[Point]:
    """Return the points along T, with the fixed tile or one as wide as T."""
    return [
        at(name, (t, scale.heads(t)), scale.tile if tiled else t, family) for t in scale.lengths
    ]


def growth(r: Results, scale: Scale, points: list[Point], metric: str) -> Estimate:
    """Return the exponent of T."""
    return exponent(scale.lengths, [r.values(point, metric) for point in points])


def by_tiling(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on tiling: does the deviation grow over that of one key tile?"""
    tiled, whole = (series(scale, "ops:bf16", "gaussian", tiled=own) for own in (True, False))
    columns = [((a, "mean_abs"), (b, "mean_abs")) for a, b in zip(tiled, whole, strict=True)]
    found = exponent(scale.lengths, [r.ratios(over, under) for over, under in columns])
    alone = growth(r, scale, whole, "rel_mean_abs")
    return verdict_on(
        "5",
        "it grows because of tiling: over that of one key tile",
        "ops:bf16, gaussian",
        GROWS,
        f"mean |deviation| over that of one key tile: T^{interval(found)}",
        found,
        f"with one key tile, relative to the output, T^{interval(alone)}",
        sizes=_span(scale),
        queries=queries(*(column for pair in columns for column in pair)),
    )


def _span(scale: Scale) -> str:
    return f"T {scale.lengths[0]} to {scale.lengths[-1]}, tile {scale.tile}"


def figure_6(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield: swapping the sides of a tile (a), square tiles (b), and larger ones (c)."""
    sizes = f"T {scale.many[0]}"
    verdict = partial(verdict_on, case="ops:bf16, gaussian", sizes=sizes)

    def largest(keys: int, queries: int = 64) -> Column:
        return at("ops:bf16", scale.many, keys, block_q=queries), "max_abs"

    for a, b in scale.swaps:
        few, many = largest(b, a), largest(a, b)
        found, back = r.ratio(many, few), r.ratio(few, many)
        yield verdict(
            claim="swapping the sides of a tile makes the deviation larger",
            holds=together([judge(found, LARGER), judge(back, LARGER)]),
            measured=f"{a}x{b} to {b}x{a} (queries x keys): {interval(found, 'x')}",
            estimate=found,
            note="on which side was the keys': swapped the other way it shrinks by as much",
            figure="6a",
            queries=queries(many, few),
        )
    yield queries_only(r, scale)
    a, b = scale.squares[0], scale.squares[-1]
    small, large = largest(a, a), largest(b, b)
    wide = at("ops:bf16", scale.many, b), "max_abs"
    shape, side = r.ratio(large, wide), r.ratio(large, small)
    yield verdict(
        claim="square tiles have no effect",
        holds=together(
            [Word.AGREES if shape.mean == 1.0 else judge(shape, SAME), judge(side, SAME)]
        ),
        measured=f"{b}x{b} against 64x{b}: {interval(shape, 'x')}; {b}x{b} against {a}x{a}:"
        f" {interval(side, 'x')}",
        estimate=side,
        note="on what is held: being square does nothing, the number of keys per tile does",
        figure="6b",
        queries=queries(large, wide, small),
    )
    for name in ("ops:bf16", "sums:bf16", "qiu-yao", "fa2-bf16", "ops:fp32"):
        sides = scale.production_tiles if name == "fa2-bf16" else scale.tiles
        columns = [(at(name, scale.many, side), "max_abs") for side in sides]
        found = exponent(sides, [r.values(*column) for column in columns])
        means = [mean(r.values(*column)).mean for column in columns]
        best = sides[int(np.argmin(np.nan_to_num(means, nan=math.inf)))]
        yield verdict_on(
            "6c",
            "larger tiles make the deviation smaller",
            f"{name}, gaussian",
            FALLS,
            f"block_k^{interval(found)}",
            found,
            "" if best == sides[-1] else f"the smallest deviation is at block_k {best}",
            sizes=f"{sizes}, block_k {scale.tiles[0]} to {scale.tiles[-1]}",
            queries=queries(*columns),
        )


def queries_only(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on queries per tile, which decide nothing: every metric and seed."""
    sides = {(a, b) for s in scale.swaps for a, b in (s, s[::-1])} | {(s, s) for s in scale.squares}
    pairs = [
        (at("ops:bf16", scale.many, k, block_q=q), at("ops:bf16", scale.many, k))
        for q, k in sorted(sides)
        if q != 64
    ]
    count = same = 0
    for a, b in pairs:
        left, right = r.rows(a), r.rows(b)
        for seed, row in left.items():
            if seed in right and any(row.get(m) is not None for m in METRICS):
                count += 1
                same += all(_same(row.get(m), right[seed].get(m)) for m in METRICS)
    return verdict_on(
        "6a, b",
        "only the keys per tile matter: queries per tile change no bit",
        "ops:bf16, gaussian",
        Word.UNDECIDED if not count else Word.AGREES if same == count else Word.CONTRADICTS,
        f"{same} of {count} cells have all metrics equal to those with 64 queries per tile",
        note="ours, not the paper's: rows are independent, so both panels are the effect of"
        " block_k",
        sizes=f"T {scale.many[0]}",
        queries=queries(*((p, "rms") for pair in pairs for p in pair)),
    )


def _same(a: object, b: object) -> bool:
    return a == b or (
        isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    )


CAUSES = {  # a control of CONTROLS -> what it says if the deviation falls
    "rescale events in FP32": "the excess of tiling comes from the rescales",
    "running output (AO, PV, O) in FP32": ("ours: it comes from the running output kept in BF16"),
    "row sum (AL, ROWSUM, L) in FP32": "ours: it comes from the row sum kept in BF16",
    "both in FP32": "ours: from one of the two",
}
FAMILY = "repeated-maximum"


def cause(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield the verdicts on what removes the excess of tiling, and on where there is none."""
    tiles = f"ops:bf16, T {scale.bench[0]}, {scale.bench[0] // scale.narrow} key tiles"
    verdict = partial(verdict_on, "cause", sizes=tiles)
    for what, claim in CAUSES.items():
        for family in ("gaussian", "sink"):
            base, changed = narrow(scale, family), narrow(scale, family, **CONTROLS[what])
            found = r.ratio((changed, "rms"), (base, "rms"))
            after = r.ratio((changed, "rms"), (base, "unfused_rms"))
            alone = r.ratio((narrow(scale, family, **CONTROLS["O in FP32"]), "rms"), (base, "rms"))
            hidden = (
                "AO rounds in every tile, rescaled or not, and hides behind O as O behind AO: O"
                f" alone in FP32 gives {interval(alone, 'x')}"
            )
            yield verdict(
                claim=claim,
                case=f"{what}, {family}",
                holds=SMALLER,
                measured=f"rms {interval(found, 'x')}: from {interval(excess(r, base, 'rms'), 'x')}"
                f" to {interval(after, 'x')} of unfused's",
                estimate=found,
                note=hidden if what == "rescale events in FP32" else "",
                queries=queries((changed, "rms"), (base, "rms"), (base, "unfused_rms")),
            )
    # the maximum of a sink is reached in the first tile
    base = narrow(scale, "sink")
    rescales, left = mean(r.values(base, "rescales")), excess(r, base, "rms")
    words = {judge(rescales, (-1.0, 0.01)), judge(left, LARGER)}
    yield verdict(
        claim="no excess without rescales",
        case="sink",
        holds=Word.CONTRADICTS
        if words == {Word.AGREES}
        else Word.UNDECIDED
        if Word.UNDECIDED in words
        else Word.AGREES,
        measured=f"{interval(rescales)} rescales per row, yet rms {interval(left, 'x')} of"
        " unfused's",
        estimate=left,
        note="what each tile adds is rounded away against sums that are large from the first tile"
        " on",
        queries=queries(*((base, m) for m in ("rescales", "rms", "unfused_rms"))),
    )
    last = narrow(scale, "sink", key_order="descending")
    found = r.ratio((last, "rms"), (base, "rms"))
    yield verdict(
        claim="ours: the sink met last, the excess is smaller",
        case="key_order=descending",
        holds=SMALLER,
        measured=f"rms {interval(found, 'x')}",
        estimate=found,
        queries=queries((last, "rms"), (base, "rms")),
    )


def bias(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield verdicts on the bias without tiling, on what tiling changes, and on the stabilizer."""
    verdict = partial(verdict_on, "tension", sizes=f"qiu-yao, {FAMILY}, T {scale.bench[0]}")
    most = scale.counts[-1]
    keys = {count: f"{count} key tile{'s' if count > 1 else ''}" for count in (1, most)}
    plain = {count: biased(scale, FAMILY, count, "none") for count in (1, most)}
    stabilized = {count: biased(scale, FAMILY, count, "2") for count in (1, most)}

    def size(point: Point, metric: str) -> Values:
        return {seed: abs(x) for seed, x in r.values(point, metric).items()}

    def shown(point: Point, metric: str) -> str:
        return interval(mean(r.values(point, metric)))

    found = mean(r.values(plain[1], "mean_ulps"))
    yield verdict(
        claim="the bias is there without any tiling",
        case=keys[1],
        holds=Word.AGREES if found.low > 0.0 or found.high < 0.0 else Word.UNDECIDED,
        measured=f"out {interval(found)} ulp, PV {shown(plain[1], 'PV.mean_ulps')} ulp",
        estimate=found,
        queries=queries((plain[1], "mean_ulps"), (plain[1], "PV.mean_ulps")),
    )
    grown = ratio(size(plain[most], "mean_ulps"), size(plain[1], "mean_ulps"))
    yield verdict(
        claim="tiling makes the bias larger",
        case=keys[most],
        holds=LARGER,
        measured=f"out {shown(plain[most], 'mean_ulps')} ulp, {interval(grown, 'x')} that of one"
        f" key tile; PV {shown(plain[most], 'PV.mean_ulps')} ulp",
        estimate=grown,
        note="ours: the two papers' effects are not independent on this input",
        queries=queries(
            (plain[most], "mean_ulps"), (plain[1], "mean_ulps"), (plain[most], "PV.mean_ulps")
        ),
    )
    for count in (1, most):
        after, before = points = stabilized[count], plain[count]
        share = ratio(*(size(point, "PV.mean_ulps") for point in points))
        yield verdict(
            claim="the stabilizer removes the bias of PV",
            case=keys[count],
            holds=judge(share, (0.0, 0.25)),
            measured=f"PV {shown(before, 'PV.mean_ulps')} to {shown(after, 'PV.mean_ulps')} ulp;"
            f" out {shown(before, 'mean_ulps')} to {shown(after, 'mean_ulps')} ulp",
            estimate=mean(r.values(after, "PV.mean_ulps")),
            queries=queries(*((p, m) for m in ("PV.mean_ulps", "mean_ulps") for p in points)),
        )
    after = biased(scale, FAMILY, most, "2", **ROW_SUM)
    share = ratio(size(after, "mean_ulps"), size(stabilized[most], "mean_ulps"))
    yield verdict(
        claim="ours: what the stabilizer leaves comes from L kept in BF16",
        case=keys[most],
        holds=(0.0, 0.5),
        measured=f"out {shown(stabilized[most], 'mean_ulps')} to {shown(after, 'mean_ulps')} ulp"
        " with L in FP32",
        estimate=share,
        queries=queries((after, "mean_ulps"), (stabilized[most], "mean_ulps")),
    )
    points = stabilized[most], plain[most]
    kept, without = (excess(r, point, "rms") for point in points)
    yield verdict(
        claim="the stabilizer leaves the excess of tiling",
        case=keys[most],
        holds=LARGER,
        measured=f"rms {interval(kept, 'x')} of unfused's, without it {interval(without, 'x')}",
        estimate=kept,
        queries=queries(*((p, m) for p in points for m in ("rms", "unfused_rms"))),
    )
