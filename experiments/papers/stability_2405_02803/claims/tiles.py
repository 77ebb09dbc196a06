"""Fig. 6: swapping the sides of a tile, square tiles, and larger ones."""

import math

from roundscope.experiments.framework.estimates import exponent, ratio
from roundscope.experiments.framework.verdicts import (
    FALLS,
    LARGER,
    SAME,
    Verdict,
    Word,
    interval,
    judge,
    together,
)
from roundscope.experiments.papers.stability_2405_02803.emulations import Point, at
from roundscope.experiments.papers.stability_2405_02803.results import Results, query
from roundscope.experiments.papers.stability_2405_02803.scale import Scale
from roundscope.tools.sweep.measuring.metrics import METRICS


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return the verdicts on the three panels."""
    names = ("ops:bf16", "sums:bf16", "qiu-yao", "fa2-bf16", "ops:fp32")
    return [
        *(swapped(r, scale, *s) for s in scale.swaps),
        queries_only(r, scale),
        squares(r, scale),
        *(area(r, scale, n) for n in names),
    ]


def swapped(r: Results, scale: Scale, a: int, b: int) -> Verdict:
    """Return the verdict on Fig. 6a: a x b against b x a, queries x keys."""
    few, many = (at("ops:bf16", scale.many, keys, block_q=rows) for rows, keys in ((a, b), (b, a)))
    found = ratio(r.values(many, "max_abs"), r.values(few, "max_abs"))
    back = ratio(r.values(few, "max_abs"), r.values(many, "max_abs"))
    return Verdict(
        figure="6a",
        claim="swapping the sides of a tile makes the deviation larger",
        case="ops:bf16, gaussian",
        sizes=size(scale),
        word=together([judge(found, LARGER), judge(back, LARGER)]),
        measured=f"{a}x{b} to {b}x{a} (queries x keys): {interval(found, 'x')}",
        estimate=found,
        note="on which side was the keys': swapped the other way it shrinks by as much",
        queries=(query(many, "max_abs"), query(few, "max_abs")),
    )


def queries_only(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on Fig. 6a and b: queries per tile decide nothing.

    Every metric of every seed is compared.
    """
    sides = {(a, b) for s in scale.swaps for a, b in (s, s[::-1])} | {(s, s) for s in scale.squares}
    pairs = [
        (at("ops:bf16", scale.many, k, block_q=q), at("ops:bf16", scale.many, k))
        for q, k in sorted(sides)
        if q != 64
    ]
    compared = [equal(r, *pair) for pair in pairs]
    count, same = sum(n for _, n in compared), sum(s for s, _ in compared)
    word = Word.UNDECIDED if not count else Word.AGREES if same == count else Word.CONTRADICTS
    return Verdict(
        figure="6a, b",
        claim="only the keys per tile matter: queries per tile change no bit",
        case="ops:bf16, gaussian",
        sizes=size(scale),
        word=word,
        measured=(
            f"{same} of {count} cells have all metrics equal to those with 64 queries per tile"
        ),
        note=(
            "ours, not the paper's: rows are independent, so both panels are the effect of block_k"
        ),
        queries=tuple(query(p, "rms") for pair in pairs for p in pair),
    )


def equal(r: Results, a: Point, b: Point) -> tuple[int, int]:
    """Return (cells with identical metrics, cells compared) of two conditions, seed by seed."""
    left, right = r.rows(a), r.rows(b)
    shared = [
        seed
        for seed in left
        if seed in right and any(left[seed].get(m) is not None for m in METRICS)
    ]
    return sum(all(_same(left[s].get(m), right[s].get(m)) for m in METRICS) for s in shared), len(
        shared
    )


def _same(a: object, b: object) -> bool:
    return a == b or (
        isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    )


def squares(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on Fig. 6b: does being square matter, and does the side?"""
    small, large = (
        at("ops:bf16", scale.many, side, block_q=side)
        for side in (scale.squares[0], scale.squares[-1])
    )
    wide = at("ops:bf16", scale.many, scale.squares[-1])
    shape = ratio(r.values(large, "max_abs"), r.values(wide, "max_abs"))
    side = ratio(r.values(large, "max_abs"), r.values(small, "max_abs"))
    a, b = scale.squares[0], scale.squares[-1]
    return Verdict(
        figure="6b",
        claim="square tiles have no effect",
        case="ops:bf16, gaussian",
        sizes=size(scale),
        word=together(
            [Word.AGREES if shape.mean == 1.0 else judge(shape, SAME), judge(side, SAME)]
        ),
        measured=(
            f"{b}x{b} against 64x{b}: {interval(shape, 'x')}; {b}x{b} against {a}x{a}:"
            f" {interval(side, 'x')}"
        ),
        estimate=side,
        note="on what is held: being square does nothing, the number of keys per tile does",
        queries=tuple(query(p, "max_abs") for p in (large, wide, small)),
    )


def area(r: Results, scale: Scale, name: str) -> Verdict:
    """Return the verdict on Fig. 6c: the exponent of block_k, no tiling included."""
    sides = scale.production_tiles if name == "fa2-bf16" else scale.tiles
    points = [at(name, scale.many, side) for side in sides]
    found = exponent(sides, [r.values(point, "max_abs") for point in points])
    best = min(sides, key=lambda side: _level(r, name, scale, side))
    note = "" if best == sides[-1] else f"the smallest deviation is at block_k {best}"
    return Verdict(
        figure="6c",
        claim="larger tiles make the deviation smaller",
        case=f"{name}, gaussian",
        sizes=f"{size(scale)}, block_k {scale.tiles[0]} to {scale.tiles[-1]}",
        word=judge(found, FALLS),
        measured=f"block_k^{interval(found)}",
        estimate=found,
        note=note,
        queries=tuple(query(point, "max_abs") for point in points),
    )


def _level(r: Results, name: str, scale: Scale, side: int) -> float:
    values = list(r.values(at(name, scale.many, side), "max_abs").values())
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.inf


def size(scale: Scale) -> str:
    """Return T in words."""
    return f"T {scale.many[0]}"
