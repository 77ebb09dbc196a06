"""Fig. 5: deviations grow with the sequence length at a fixed tile.

They are the largest deviation, and the mean and the spread of |deviation|.
"""

from roundscope.experiments.framework.estimates import Estimate, exponent, mean
from roundscope.experiments.framework.verdicts import (
    GROWS,
    Verdict,
    interval,
    judge,
    number,
    together,
)
from roundscope.experiments.papers.stability_2405_02803.emulations import Point, at
from roundscope.experiments.papers.stability_2405_02803.results import Results, query
from roundscope.experiments.papers.stability_2405_02803.scale import Scale

CASES = (  # emulation, input, relative to the output's size
    ("ops:bf16", "gaussian", False),
    ("ops:bf16", "gaussian", True),
    ("ops:bf16", "one-signed-v", False),
    ("ops:bf16", "sink", True),
    ("sums:bf16", "gaussian", True),
    ("fa2-bf16", "gaussian", True),
    ("ops:fp32", "gaussian", True),
)


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return the verdicts on both panels, and on whether it is tiling."""
    return [
        *(largest(r, scale, *case) for case in CASES),
        *(spread(r, scale, *case) for case in CASES[:3]),
        by_tiling(r, scale),
    ]


def series(scale: Scale, name: str, family: str, tile: int | None = None) -> list[Point]:
    """Return the points along T; without a tile, one as wide as T."""
    return [at(name, (t, scale.heads(t)), tile or t, family) for t in scale.lengths]


def growth(r: Results, scale: Scale, points: list[Point], metric: str) -> Estimate:
    """Return the exponent of T."""
    return exponent(scale.lengths, [r.values(point, metric) for point in points])


def largest(r: Results, scale: Scale, name: str, family: str, relative: bool) -> Verdict:
    """Return the verdict on Fig. 5a."""
    points, metric = series(scale, name, family, scale.tile), "rel_max" if relative else "max_abs"
    found = growth(r, scale, points, metric)
    return Verdict(
        figure="5a",
        claim=f"largest deviation grows with T{', relative to the output' if relative else ''}",
        case=f"{name}, {family}",
        sizes=span(scale),
        word=judge(found, GROWS),
        measured=_power(r, points, metric, found),
        estimate=found,
        queries=tuple(query(point, metric) for point in points),
        note=_shrinks(relative, family),
    )


def by_tiling(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on tiling: does the deviation grow over that of one key tile?"""
    tiled = series(scale, "ops:bf16", "gaussian", scale.tile)
    whole = series(scale, "ops:bf16", "gaussian")
    over = [
        (r.values(a, "mean_abs"), r.values(b, "mean_abs"))
        for a, b in zip(tiled, whole, strict=True)
    ]
    found = exponent(
        scale.lengths, [{s: x / b[s] for s, x in a.items() if b.get(s)} for a, b in over]
    )
    alone = growth(r, scale, whole, "rel_mean_abs")
    return Verdict(
        figure="5",
        claim="it grows because of tiling: over that of one key tile",
        case="ops:bf16, gaussian",
        sizes=span(scale),
        word=judge(found, GROWS),
        measured=f"mean |deviation| over that of one key tile: T^{interval(found)}",
        estimate=found,
        note=f"with one key tile, relative to the output, T^{interval(alone)}",
        queries=tuple(
            query(p, "mean_abs") for pair in zip(tiled, whole, strict=True) for p in pair
        ),
    )


def spread(r: Results, scale: Scale, name: str, family: str, relative: bool) -> Verdict:
    """Return the verdict on Fig. 5b."""
    points = series(scale, name, family, scale.tile)
    metrics = ("rel_mean_abs", "rel_std_abs") if relative else ("mean_abs", "std_abs")
    found = [growth(r, scale, points, metric) for metric in metrics]
    return Verdict(
        figure="5b",
        claim=(
            "mean and std of |deviation| grow with"
            f" T{', relative to the output' if relative else ''}"
        ),
        case=f"{name}, {family}",
        sizes=span(scale),
        word=together([judge(e, GROWS) for e in found]),
        measured=" and ".join(f"T^{interval(e)}" for e in found),
        estimate=found[0],
        queries=tuple(query(point, metric) for metric in metrics for point in points),
        note=_shrinks(relative, family),
    )


def span(scale: Scale) -> str:
    """Return the lengths in words."""
    return f"T {scale.lengths[0]} to {scale.lengths[-1]}, tile {scale.tile}"


def _power(r: Results, points: list[Point], metric: str, found: Estimate) -> str:
    ends = [mean(r.values(point, metric)).mean for point in (points[0], points[-1])]
    return f"T^{interval(found)}: {number(ends[0])} to {number(ends[1])}"


def _shrinks(relative: bool, family: str) -> str:
    return (
        "the output itself shrinks as 1 / sqrt T" if not relative and family == "gaussian" else ""
    )
