"""Fig. 3: the deviation falls with mantissa bits.

Fig. 4: FlashAttention deviates about 10 times as much as the baseline in BF16.
"""

from itertools import pairwise

from roundscope.experiments.framework.estimates import Estimate, mean, ratio
from roundscope.experiments.framework.verdicts import (
    SMALLER,
    TENFOLD,
    Verdict,
    Word,
    interval,
    judge,
    together,
)
from roundscope.experiments.papers.stability_2405_02803.conditions import FAMILIES
from roundscope.experiments.papers.stability_2405_02803.emulations import (
    BASELINE,
    FORMATS,
    TILED,
    Point,
    at,
)
from roundscope.experiments.papers.stability_2405_02803.results import Results, query
from roundscope.experiments.papers.stability_2405_02803.scale import Scale

TENFOLD_CLAIM = "in BF16 tiled deviates about 10x as much as unfused"


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return the verdicts on both figures."""
    return [
        *(mantissa(r, scale, kind) for kind in ("ops", "sums")),
        *(against_own(r, scale, name) for name in TILED),
        *(against_pytorch(r, scale, name) for name in TILED),
        anywhere(r, scale),
    ]


def mantissa(r: Results, scale: Scale, kind: str) -> Verdict:
    """Return the verdict on the largest |tiled - unfused| for every format.

    Each finer format should be below the one before.
    """
    points = [at(f"{kind}:{form}", scale.bench, scale.tile) for form in FORMATS]
    series = [r.values(point, "vs_unfused_max") for point in points]
    steps = [ratio(finer, coarser) for coarser, finer in pairwise(series)]
    return Verdict(
        figure="3",
        claim="largest |tiled - unfused| falls with mantissa bits",
        case=f"{kind}:FORMAT",
        sizes=bench(scale),
        word=together([judge(step, SMALLER) for step in steps]),
        measured=", ".join(
            f"{form} {mean(values).mean:.1e}" for form, values in zip(FORMATS, series, strict=True)
        ),
        estimate=max(steps, key=lambda step: step.mean),
        queries=tuple(query(point, "vs_unfused_max") for point in points),
        note="the estimate is the smallest fall from one format to the next",
    )


def against_own(r: Results, scale: Scale, name: str) -> Verdict:
    """Return the verdict on tiled against unfused attention in the same formats."""
    point = at(name, scale.bench, scale.tile)
    found = own_ratio(r, point)
    return Verdict(
        figure="4",
        claim=TENFOLD_CLAIM,
        case=f"{name} / unfused in the same formats",
        sizes=bench(scale),
        word=judge(found, TENFOLD),
        measured=f"{interval(found, 'x')} (rms {interval(own_ratio(r, point, 'rms'), 'x')})",
        estimate=found,
        queries=(query(point, "max_abs"), query(point, "unfused_max_abs")),
    )


def against_pytorch(r: Results, scale: Scale, name: str) -> Verdict:
    """Return the verdict on tiled against unfused attention as PyTorch does it in BF16.

    That has FP32 sums and softmax.
    """
    point, under = at(name, scale.bench, scale.tile), at(BASELINE, scale.bench, scale.bench[0])
    found = ratio(r.values(point, "max_abs"), r.values(under, "max_abs"))
    rms = ratio(r.values(point, "rms"), r.values(under, "rms"))
    return Verdict(
        figure="4",
        claim=TENFOLD_CLAIM,
        case=f"{name} / {BASELINE}",
        sizes=bench(scale),
        word=judge(found, TENFOLD),
        measured=f"{interval(found, 'x')} (rms {interval(rms, 'x')})",
        estimate=found,
        queries=(query(point, "max_abs"), query(under, "max_abs")),
    )


def anywhere(r: Results, scale: Scale) -> Verdict:
    """Return every BF16 condition with its ratio of largest deviations.

    Those that the claim fits are named.
    """
    all_of_them = candidates(r, scale)
    fits = [c for c in all_of_them if judge(c[1], TENFOLD) is Word.AGREES]
    known = [c for c in all_of_them if c[1].seeds > 1]
    best = max(known, key=lambda c: c[1].mean, default=None)
    names = list(dict.fromkeys(label for label, *_ in fits))
    word = Word.UNDECIDED if not known else Word.DEPENDS if fits else Word.CONTRADICTS
    return Verdict(
        figure="4",
        claim=TENFOLD_CLAIM,
        case=f"all {len(known)} in BF16 that were run",
        sizes="T, tiles and inputs as run",
        word=word,
        measured=(
            f"{len(fits)} within 5x to 20x; the largest is {interval(best[1], 'x')}: {best[0]}"
            if best
            else "-"
        ),
        estimate=best[1] if best else None,
        queries=best[2] if best else (),
        note=(
            "on number of key tiles, input, what accumulates in BF16 and the baseline; about 10x:"
            f" {'; '.join(names) or 'none'}"
        ),
    )


def candidates(r: Results, scale: Scale) -> list[tuple[str, Estimate, tuple[str, ...]]]:
    """Return (words, ratio of largest deviations, queries) of every tiled BF16 condition.

    Each that was measured is compared with both baselines.
    """
    found = []
    for name, point in _tiled(scale):
        where = (
            f"{name}, T {point['T']}, {int(point['T']) // int(point['block_k'])} key tiles,"
            f" {point['input']}"
        )
        own = own_ratio(r, point)
        found.append(
            (
                f"{where}, to its own unfused",
                own,
                (query(point, "max_abs"), query(point, "unfused_max_abs")),
            )
        )
        under = at(
            BASELINE, (int(point["T"]), int(point["N"])), int(point["T"]), str(point["input"])
        )
        other = ratio(r.values(point, "max_abs"), r.values(under, "max_abs"))
        found.append(
            (f"{where}, to {BASELINE}", other, (query(point, "max_abs"), query(under, "max_abs")))
        )
    return [c for c in found if c[1].seeds]


def _tiled(scale: Scale) -> list[tuple[str, Point]]:
    long = [(t, scale.heads(t)) for t in scale.lengths]
    sizes = {(*size, scale.tile) for size in (*long, scale.bench)} | {
        (*scale.many, k) for k in scale.tiles
    }
    sizes |= {(*long[-1], scale.narrow), (*scale.bench, scale.narrow)}
    ordered = sorted(s for s in sizes if s[2] < s[0])
    return [
        (name, at(name, (t, n), k, family))
        for name in TILED
        for family in FAMILIES
        for t, n, k in ordered
    ]


def own_ratio(r: Results, point: Point, metric: str = "max_abs") -> Estimate:
    """Return a deviation over that of unfused attention in the same formats."""
    return ratio(r.values(point, metric), r.values(point, f"unfused_{metric}"))


def bench(scale: Scale) -> str:
    """Return the bench in words."""
    return f"T {scale.bench[0]}, tile {scale.tile}, gaussian"
