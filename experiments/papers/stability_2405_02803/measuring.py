"""What is run of arXiv 2405.02803, and golden.sqlite, which keeps its measurements.

The paper does not say where its re-implementation rounds, so there are several emulations. A point
is a condition with the seeds left out. The file has the cells of a sweep, and a table `drift` of
trainings, a row per pair, seed and look: key (`Training.key`), pair, seed, step, max_difference,
wasserstein, loss, gap, device, versions (JSON).
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention.sites import OF_KERNELS, Site
from roundscope.experiments.framework.estimates import Estimate, Values, factor
from roundscope.experiments.framework.study import Outcome
from roundscope.experiments.papers.stability_2405_02803 import trainings
from roundscope.experiments.papers.stability_2405_02803.trainings import (
    NUMBERS,
    Apart,
    Drifts,
    Training,
)
from roundscope.experiments.train.config import Config
from roundscope.tools.report.progress import bar
from roundscope.tools.results.machine import device, versions
from roundscope.tools.results.tables import quoted
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell, Value
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.running import run as sweep
from roundscope.tools.sweep.storage.store import Store, read_cells, read_sites, reading, writing

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

    lengths   T of the length study; N = entries // T, for maxima over equally many entries
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


FILE = "golden"  # .sqlite
Row = Mapping[str, Any]
Place = tuple[tuple[str, Value | None], ...]
Column = tuple[Point, str]  # a condition and a metric of it

# what CONTROLS change; every file has these columns
CHANGED = tuple(f"format.{site}" for site in ("DM", "ALPHA", "AL", "ROWSUM", "L", "AO", "PV", "O"))
AXES = (
    *("preset", "format", "key_order", "stabiliser", "only", "but"),
    *("block_q", "block_k", "T", "N", "input"),
    *CHANGED,
)

DERIVED = {  # name -> SQL of METRICS
    "std_abs": "sqrt(max(0, rms * rms - mean_abs * mean_abs))",
    "rel_max": "max_abs * rel_rms / rms",
    "rel_mean_abs": "mean_abs * rel_rms / rms",
    "rel_std_abs": "sqrt(max(0, rms * rms - mean_abs * mean_abs)) * rel_rms / rms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Cells of one engine that are ok, by place and seed; rows of sites; drifts of trainings."""

    cells: Mapping[Place, Mapping[int, Row]]
    sites: Mapping[tuple[str, str], Row]
    failed: tuple[Row, ...] = ()
    drifts: Drifts = field(default_factory=dict)
    trained_on: Sequence[str] = ()

    def values(self, point: Point, metric: str) -> Values:
        """Return a metric of METRICS or DERIVED, or SITE.METRIC, by seed; NaN if there is none."""
        return {seed: self._number(row, metric) for seed, row in self.rows(point).items()}

    def ratios(self, over: Column, under: Column) -> Values:
        """Return one column over another, seed by seed, where the other is not 0."""
        below = self.values(*under)
        return {seed: x / below[seed] for seed, x in self.values(*over).items() if below.get(seed)}

    def ratio(self, over: Column, under: Column) -> Estimate:
        """Return the geometric mean of one column over another, paired by seed."""
        return factor(self.ratios(over, under))

    def rows(self, point: Point) -> Mapping[int, Row]:
        """Return a condition's cells by seed; none if it was not measured."""
        return self.cells.get(place_of(point), {})

    def _number(self, row: Row, metric: str) -> float:
        site, dot, name = metric.partition(".")
        if dot:
            return _float(self.sites.get((row["key"], site), {}).get(name))
        return _derived(row, metric) if metric in DERIVED else _float(row.get(metric))


def gathered(rows: Sequence[Row], sites: Sequence[Row] = ()) -> Results:
    """Return rows of `read_cells` and of `read_sites` by condition."""
    cells: dict[Place, dict[int, Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            place = tuple((name, row.get(name)) for name in _axes(str(row["input"])))
            cells.setdefault(place, {})[int(row["seed"])] = row
    failed = tuple(row for row in rows if row["status"] != "ok")
    return Results(
        cells=cells, sites={(row["key"], row["site"]): row for row in sites}, failed=failed
    )


def place_of(point: Point) -> Place:
    """Return every axis in which conditions here differ, after defaults."""
    return tuple((name, point.get(name, DEFAULTS.get(name))) for name in _axes(str(point["input"])))


def queries(*columns: Column) -> tuple[str, ...]:
    """Return SQL over the results file, for each column what gives `Results.values`."""
    return tuple(query(*column) for column in columns)


def query(point: Point, metric: str) -> str:
    """Return SQL over the results file that gives `Results.values`."""
    site, dot, name = metric.partition(".")
    what = DERIVED.get(metric, metric)
    where = " AND ".join(
        f"cells.{quoted(axis)} "  # sites have a column n
        + ("IS NULL" if x is None else f"= '{x}'" if isinstance(x, str) else f"= {int(x)}")
        for axis, x in place_of(point)
    )
    if dot:
        tables = "cells JOIN sites s USING (key)"
        return f"SELECT seed, s.{name} FROM {tables} WHERE s.site = '{site}' AND {where}"
    return f"SELECT seed, {what} FROM cells WHERE {where}"


def _axes(family: str) -> tuple[str, ...]:
    """Return the axes of a family; real tensors have their own N."""
    return tuple(name for name in AXES if name != "N") if ":" in family else AXES


def _derived(row: Row, metric: str) -> float:
    """Return a derived metric of a row, as the SQL of DERIVED defines it."""
    rms, mean_abs, rel = (_float(row.get(n)) for n in ("rms", "mean_abs", "rel_rms"))
    relative = rel / rms if rms else math.nan
    if metric == "rel_max":
        return _float(row.get("max_abs")) * relative
    if metric == "rel_mean_abs":
        return mean_abs * relative
    spread = math.sqrt(max(0.0, rms * rms - mean_abs * mean_abs))
    return spread if metric == "std_abs" else spread * relative


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


MADE = f"""CREATE TABLE IF NOT EXISTS drift (
key TEXT, pair TEXT, seed INTEGER, step INTEGER, {", ".join(f"{n} REAL" for n in NUMBERS)},
device TEXT, versions TEXT, PRIMARY KEY (key, pair, seed, step)) WITHOUT ROWID"""


def save(store: Store, t: Training, found: Drifts, device: str, versions: dict[str, str]) -> None:
    """Store what a training gave, all or none; it is on the disk when this returns."""

    def null(x: float) -> float | None:
        return float(x) if math.isfinite(x) else None

    about = (device, json.dumps(versions))
    rows = [
        (t.key, pair, seed, step, *(null(getattr(a, n)[k]) for n in NUMBERS), *about)
        for pair, by_seed in found.items()
        for seed, a in by_seed.items()
        for k, step in enumerate(t.steps)
    ]
    store.connection.execute("BEGIN IMMEDIATE")
    with store.connection:
        store.connection.execute(MADE)
        store.connection.executemany(
            f"INSERT OR REPLACE INTO drift VALUES ({', '.join('?' * (4 + len(NUMBERS) + 2))})", rows
        )


def read_drifts(path: Path, t: Training) -> tuple[Drifts, list[str]]:
    """Return what is stored of a training, nothing if it was not run, and where it was run."""
    with reading(path) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'drift'").fetchone():
            return {}, []
        rows = connection.execute(
            "SELECT * FROM drift WHERE key = ? ORDER BY pair, seed, step", (t.key,)
        ).fetchall()
    looks: dict[str, dict[int, list[sqlite3.Row]]] = {}
    for row in rows:
        looks.setdefault(str(row["pair"]), {}).setdefault(int(row["seed"]), []).append(row)
    return {
        pair: {
            seed: Apart(**{n: np.array([_float(row[n]) for row in own]) for n in NUMBERS})
            for seed, own in by_seed.items()
        }
        for pair, by_seed in looks.items()
    }, sorted({str(row["device"]) for row in rows})


def measured(
    out: Path, draw: bool, *, cells: Sequence[Cell], training: Training, jobs: int | None
) -> tuple[Outcome, Results | None]:
    """Measure what the file lacks and what failed, unless `draw`. No results after Ctrl-C."""
    file, done, interrupted = out / f"{FILE}.sqlite", 0, False
    models = len(training.versions) * training.seeds
    launches = len(cells) + models
    if draw and not file.exists():
        return Outcome(launches=launches, there=0, ran=0), None
    if not draw:
        with writing(file) as store, sweep.bar("golden") as progress:
            came = sweep.run(cells, store, jobs=jobs, retry_failed=True, progress=progress)
        done, interrupted = came.done, bool(came.interrupted)
    if not (draw or interrupted or read_drifts(file, training)[0]):
        interrupted = not _train(training, file, models)
        done += 0 if interrupted else models
    keys = {cell.key for cell in cells}
    drifts, devices = read_drifts(file, training)
    found = gathered(read_cells(file, keys), read_sites(file, keys))
    results = replace(found, drifts=drifts, trained_on=devices)
    rows = [row for by_seed in results.cells.values() for row in by_seed.values()]
    there = len(rows) + (models if drifts else 0)
    return Outcome(
        launches=launches,
        there=there,
        ran=done,
        interrupted=interrupted,
        devices=sorted({str(row["device"]) for row in rows} | set(devices)),
        failure=next((str(row["error"]) for row in results.failed), ""),
    ), None if interrupted or not there else results


def _train(training: Training, file: Path, models: int) -> bool:
    """Train and store the results; return False after Ctrl-C, when none of them is stored."""
    text = f"training {models} models"
    with writing(file) as store, bar(text, training.config.steps) as progress:
        try:
            found = trainings.run(training, progress)
        except KeyboardInterrupt:
            return False
        save(store, training, found, device("xla"), versions("xla"))
    return True
