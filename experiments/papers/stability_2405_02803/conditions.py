"""What is run: studies as lists of points, with the seeds left out."""

from collections.abc import Iterator, Mapping

from roundscope.attention.sites import OF_KERNELS, Site
from roundscope.experiments.papers.stability_2405_02803.emulations import (
    BASELINE,
    FORMATS,
    Point,
    at,
)
from roundscope.experiments.papers.stability_2405_02803.scale import REAL, Scale
from roundscope.tools.sweep.conditions.cell import Cell, Value

# diffuse attention; sums that grow; one key that dominates from the first tile
FAMILIES = ("gaussian", "one-signed-v", "sink")
# events changed together, since one of a pair alone hides behind the other
GROUPS = ("DM+ALPHA+AL+AO", "AL+L", "AO+O", "AL+L+AO+O")
# Q, K, V are BF16 numbers already
EVENTS = tuple(str(s) for s in Site if s.stage == "forward" and s not in (Site.LSE, *OF_KERNELS))

ROW_SUM: Point = {"format.L": "fp32"}  # all of the row sum that qiu-yao keeps in BF16
CONTROLS: dict[str, Point] = {
    "as it is": {},
    "keys from the last to the first": {"key_order": "descending"},
    "rescale events in FP32": {f"format.{s}": "fp32" for s in ("DM", "ALPHA", "AL", "AO")},
    "O in FP32": {"format.O": "fp32"},
    "running output (AO, PV, O) in FP32": {f"format.{s}": "fp32" for s in ("AO", "PV", "O")},
    "row sum (AL, ROWSUM, L) in FP32": {f"format.{s}": "fp32" for s in ("AL", "ROWSUM", "L")},
    "both in FP32": {f"format.{s}": "fp32" for s in ("AO", "PV", "O", "AL", "ROWSUM", "L")},
}


def lengths(scale: Scale) -> Iterator[Point]:
    """Yield the points of Fig. 5: T with a fixed tile, and without tiling."""
    for length in scale.lengths:
        size = (length, scale.heads(length))
        for name in ("ops:bf16", "sums:bf16", "fa2-bf16", "ops:fp32"):
            yield at(name, size, scale.tile)
        yield at("ops:bf16", size, length)
        yield at(BASELINE, size, length)
        for family in FAMILIES[1:]:
            yield at("ops:bf16", size, scale.tile, family)
            yield at(BASELINE, size, length, family)
        yield at("ops:bf16", size, length, "one-signed-v")
    for length in scale.real:
        for name in ("ops:bf16", "fa2-bf16"):
            yield at(name, (length, 0), scale.tile, REAL)


def tiles(scale: Scale) -> Iterator[Point]:
    """Yield the points of Fig. 6c and the number of key tiles.

    The longest T is in the narrowest tiles.
    """
    for block_k in scale.tiles:
        for name in ("ops:bf16", "sums:bf16", "qiu-yao", "ops:fp32"):
            yield at(name, scale.many, block_k)
        if block_k in scale.production_tiles:
            yield at("fa2-bf16", scale.many, block_k)
        for family in FAMILIES[1:]:
            yield at("ops:bf16", scale.many, block_k, family)
    longest = (scale.lengths[-1], scale.heads(scale.lengths[-1]))
    for family in FAMILIES:
        yield at(BASELINE, scale.many, scale.many[0], family)
        yield at("ops:bf16", longest, scale.narrow, family)


def blocks(scale: Scale) -> Iterator[Point]:
    """Yield the points of Fig. 6a and b: swapped and square tiles."""
    for rows, columns in shapes(scale):
        yield at("ops:bf16", scale.many, columns, block_q=rows)


def shapes(scale: Scale) -> list[tuple[int, int]]:
    """Return (block_q, block_k) of both studies of shape."""
    swapped = [shape for a, b in scale.swaps for shape in ((a, b), (b, a))]
    return [*swapped, *((side, side) for side in scale.squares)]


def formats(scale: Scale) -> Iterator[Point]:
    """Yield the points of Fig. 3 and 4: every format, and each way to do BF16."""
    names = [f"{kind}:{form}" for kind in ("ops", "sums") for form in FORMATS]
    for name in (*names, "qiu-yao", "fa2-bf16"):
        yield at(name, scale.bench, scale.tile)
    yield at(BASELINE, scale.bench, scale.bench[0])


def controls(scale: Scale) -> Iterator[Point]:
    """Yield points that tell from which running quantity the excess of tiling comes.

    They have many key tiles.
    """
    for family in (*FAMILIES, REAL):
        for change in CONTROLS.values():
            if family != REAL or "key_order" not in change:
                yield narrow(scale, family, **change)


def narrow(scale: Scale, family: str, **more: Value) -> Point:
    """Return ops:bf16 on the bench with the narrowest key tiles, or 16 of them for real tensors."""
    if family == REAL:
        return at("ops:bf16", (scale.real[-1], 0), scale.real[-1] // 16, REAL, **more)
    return at("ops:bf16", scale.bench, scale.narrow, family, **more)


def attribution(scale: Scale) -> Iterator[Point]:
    """Yield each event alone in BF16, and each alone in binary64."""
    for family in ("gaussian", "sink"):
        for site in (*EVENTS, *GROUPS):
            yield narrow(scale, family, only=site)
            yield narrow(scale, family, but=site)


def bias(scale: Scale) -> Iterator[Point]:
    """Yield points for sign beside magnitude (arXiv 2510.04212).

    They have repeated maxima and more and more key tiles, with and without that paper's stabilizer.
    """
    for family in ("gaussian", "repeated-maximum", REAL):
        for count in (1, 16) if family == REAL else scale.counts:
            for stabiliser in ("none", "2"):
                yield biased(scale, family, count, stabiliser)
    yield biased(scale, "repeated-maximum", scale.counts[-1], "2", **ROW_SUM)


def biased(scale: Scale, family: str, count: int, stabiliser: str, **more: Value) -> Point:
    """Return qiu-yao with `count` key tiles."""
    size = (scale.real[-1], 0) if family == REAL else scale.bench
    return at("qiu-yao", size, size[0] // count, family, stabiliser=stabiliser, **more)


STUDIES = {
    "formats (Fig. 3, 4)": formats,
    "sequence length (Fig. 5)": lengths,
    "number of key tiles (Fig. 4, 6c)": tiles,
    "shape of tiles (Fig. 6a, b)": blocks,
    "controls": controls,
    "attribution": attribution,
    "bias (arXiv 2510.04212)": bias,
}


def cells(scale: Scale, engine: str) -> dict[str, list[Cell]]:
    """Return the cells of every study, all seeds; a cell that several studies share is in each."""
    return {
        name: [cell for point in study(scale) for cell in repeated(point, scale, engine)]
        for name, study in STUDIES.items()
    }


def repeated(point: Mapping[str, Value], scale: Scale, engine: str) -> list[Cell]:
    """Return a point with its seeds; real tensors have one draw."""
    from roundscope.tools.sweep.conditions.condition import cell_of

    seeds = 1 if point["input"] == REAL else scale.repeats(int(point["T"]))
    return [cell_of({**point, "engine": engine, "seed": seed}) for seed in range(seeds)]
