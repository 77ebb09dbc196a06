"""What is run of arXiv 2405.02803: its arithmetic as emulations, sizes, and studies as points.

The paper does not say where its re-implementation rounds, so there are several emulations. A point
is a condition with the seeds left out. --quick is for a CPU, full for a GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from roundscope.attention.sites import OF_KERNELS, Site
from roundscope.experiments.papers.stability_2405_02803.trainings import Training
from roundscope.experiments.train.config import Config
from roundscope.tools.sweep.conditions.cell import Cell, Value
from roundscope.tools.sweep.conditions.condition import cell_of

REAL = "sample:layer4"  # the real tensors that come with Roundscope: one draw, so no interval
Point = dict[str, Value]
FORMATS = ("bf16", "fp16", "fp32", "fp64")
TILED = ("ops:bf16", "sums:bf16", "qiu-yao", "fa2-bf16")
BASELINE = "baseline-bf16"
EMULATIONS = {
    "ops:bf16": "every operation in BF16, sums in FP32",
    "sums:bf16": "BF16 throughout, steps of sums too",
    "qiu-yao": "qiu-yao: scores, row sum and O kept in BF16",
    "fa2-bf16": "fa2-bf16: production, FP32 inside",
    "ops:fp32": "FP32 throughout",
    "baseline-bf16": "baseline-bf16: PyTorch's unfused",
}
INPUTS = {
    "gaussian": "Gaussian",
    "one-signed-v": "V of one sign",
    "sink": "a sink",
    "repeated-maximum": "repeated maxima",
    REAL: "real tensors",
}


def emulation(name: str) -> Point:
    """Return the axes of an emulation.

    ops:FORMAT   every operation rounds to FORMAT, sums inside products are FP32
    sums:FORMAT  the steps of sums round to FORMAT too

    Any other name is a preset. In FP32 both are the preset fp32, in FP64 exact.
    """
    kind, _, form = name.partition(":")
    if kind not in ("ops", "sums"):
        return {"preset": name}
    if form in ("fp32", "fp64"):
        return {"preset": {"fp32": "fp32", "fp64": "exact"}[form]}
    return {"preset": "fp32", "format": form} if kind == "ops" else {"preset": f"all:{form}"}


def at(
    name: str, size: tuple[int, int], block_k: int, family: str = "gaussian", **more: Value
) -> Point:
    """Return an emulation at (T, N) in tiles of 64 queries; real tensors have their own N."""
    length, heads = size
    place: Point = {"T": length, "block_k": block_k, "input": family}
    return emulation(name) | place | ({} if family == REAL else {"N": heads}) | more


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of the studies.

    lengths   T of the length study; N = entries // T, so that every maximum is over equally many
              entries
    tile      the fixed tile of that study
    real      T of the real tensors
    many      (T, N) of the tile studies
    tiles     their block_k, the largest is T: no tiling
    bench     (T, N) of formats, controls, attribution and bias
    counts    numbers of key tiles there in the bias study
    narrow    the smallest block_k, for as many key tiles as there can be
    seeds     how many seeds a cell has up to T = plenty
    fewer     how many it has beyond
    training  what is trained for the drift of weights
    """

    name: str
    lengths: tuple[int, ...]
    entries: int
    real: tuple[int, ...]
    many: tuple[int, int]
    tiles: tuple[int, ...]
    production_tiles: tuple[int, ...]
    swaps: tuple[tuple[int, int], ...]
    squares: tuple[int, ...]
    bench: tuple[int, int]
    counts: tuple[int, ...]
    seeds: int
    fewer: int
    plenty: int
    training: Training
    tile: int = 64
    narrow: int = 16

    def heads(self, length: int) -> int:
        """Return N of the length study."""
        return max(1, self.entries // length)


RATE = 1e-3  # constant after the warm-up: a rate that falls would end any growth
QUICK = Scale(
    name="quick",
    lengths=(128, 256, 512, 1024),
    entries=1024,
    real=(128, 256, 512),
    many=(1024, 1),
    tiles=(16, 32, 64, 128, 256, 512, 1024),
    production_tiles=(16, 64, 256, 1024),
    swaps=((32, 128), (16, 256)),
    squares=(32, 64, 128, 256),
    bench=(512, 2),
    counts=(1, 2, 4, 8, 16),
    seeds=8,
    fewer=8,
    plenty=1024,
    training=Training(
        config=Config(
            layers=2,
            heads=2,
            width=32,
            context=32,
            batch=8,
            warmup=50,
            steps=300,
            lr=RATE,
            min_lr=RATE,
        ),
        tile=8,
        seeds=5,
        pairs=("flash", "weights", "precision", "bf16"),
    ),
)

# under xla every (shape, tile, structure of plan) is one compilation of about 10 s: few shapes,
# many seeds
FULL = Scale(
    name="full",
    lengths=(256, 1024, 4096),
    entries=8192,
    real=(128, 512),
    many=(1024, 2),
    tiles=(16, 32, 64, 128, 256, 512, 1024),
    production_tiles=(16, 64),
    swaps=((32, 128),),
    squares=(32, 64, 128),
    bench=(1024, 2),
    counts=(1, 4, 16),
    seeds=30,
    fewer=6,
    plenty=1024,
    training=Training(
        config=Config(warmup=100, steps=2000, lr=RATE, min_lr=RATE), tile=32, seeds=10
    ),
)

# diffuse attention; sums that grow; one key that dominates from the first tile
FAMILIES = ("gaussian", "one-signed-v", "sink")
# events changed together, since one of a pair alone hides behind the other
GROUPS = ("DM+ALPHA+AL+AO", "AL+L", "AO+O", "AL+L+AO+O")
# Q, K, V are BF16 numbers already
EVENTS = tuple(str(s) for s in Site if s.stage == "forward" and s not in (Site.LSE, *OF_KERNELS))

EXACT = 1e-12  # a relative error below this is due to binary64

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
    """Yield the points of Fig. 6c and the number of key tiles, the longest T in the narrowest."""
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
    """Yield points, with many key tiles, that tell which running quantity makes the excess."""
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
    """Yield points for the sign of the error, with and without arXiv 2510.04212's stabilizer."""
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
    """Return the cells of every study, which may share them; real tensors have one draw."""

    def seeds(point: Point) -> int:
        many = scale.seeds if int(point["T"]) <= scale.plenty else scale.fewer
        return 1 if point["input"] == REAL else many

    return {
        name: [
            cell_of({**point, "engine": engine, "seed": seed})
            for point in study(scale)
            for seed in range(seeds(point))
        ]
        for name, study in STUDIES.items()
    }
