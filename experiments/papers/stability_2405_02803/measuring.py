"""golden.sqlite: what it lacks is measured, what it holds is read.

It has the cells of a sweep, and a table `drift` of trainings, a row per pair, seed and look: key
(`Training.key`), pair, seed, step, max_difference, wasserstein, loss, gap, device, versions (JSON).
"""

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.framework.estimates import Estimate, Values, factor
from roundscope.experiments.framework.study import Outcome
from roundscope.experiments.papers.stability_2405_02803 import trainings
from roundscope.experiments.papers.stability_2405_02803.conditions import Point
from roundscope.experiments.papers.stability_2405_02803.trainings import (
    NUMBERS,
    Apart,
    Drifts,
    Training,
)
from roundscope.tools.report.progress import bar
from roundscope.tools.results.machine import device, versions
from roundscope.tools.results.tables import quoted
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell, Value
from roundscope.tools.sweep.running import run as sweep
from roundscope.tools.sweep.storage.store import Store, read_cells, read_sites, reading, writing

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
    """Cells of one engine that are ok.

    cells       place -> seed -> row
    sites       (key of a cell, site) -> row
    drifts      those of the trainings (`trainings.Drifts`)
    trained_on  the devices of the trainings
    """

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
    drifts = {
        pair: {
            seed: Apart(**{n: np.array([_float(row[n]) for row in own]) for n in NUMBERS})
            for seed, own in by_seed.items()
        }
        for pair, by_seed in looks.items()
    }
    return drifts, sorted({str(row["device"]) for row in rows})


def drift_query(t: Training, pair: str, metric: str, step: int) -> str:
    """Return SQL over golden.sqlite that gives a column at a look, by seed."""
    return (
        f"SELECT seed, {metric} FROM drift WHERE key = '{t.key}' AND pair = '{pair}' AND step ="
        f" {step}"
    )


def measured(
    out: Path, draw: bool, *, cells: Sequence[Cell], training: Training, jobs: int | None
) -> tuple[Outcome, Results | None]:
    """Measure what the folder's file lacks, and again what failed. No results after Ctrl-C.

    draw   whether to measure nothing
    cells  the cells, each once
    """
    file, done, interrupted = out / f"{FILE}.sqlite", 0, False
    models = len(training.versions) * training.seeds
    launches = len(cells) + models
    if draw and not file.exists():
        return Outcome(launches=launches, there=0, ran=0), None
    if not draw:
        with writing(file) as store, sweep.bar() as progress:
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
    outcome = Outcome(
        launches=launches,
        there=there,
        ran=done,
        interrupted=interrupted,
        devices=sorted({str(row["device"]) for row in rows} | set(devices)),
        failure=next((str(row["error"]) for row in results.failed), ""),
    )
    return outcome, None if interrupted or not there else results


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
