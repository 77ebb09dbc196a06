"""Measured cells by condition: a metric's value for every seed, and the SQL that gives the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundscope.experiments.papers.stability_2405_02803.drift.trainings import Drifts
from roundscope.experiments.papers.stability_2405_02803.emulations import Point
from roundscope.tools.results.tables import quoted
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Value

Row = Mapping[str, Any]
Place = tuple[tuple[str, Value | None], ...]
Values = dict[int, float]  # seed -> number

# what CONTROLS change; every file has these columns
CHANGED = tuple(f"format.{site}" for site in ("DM", "ALPHA", "AL", "ROWSUM", "L", "AO", "PV", "O"))
AXES = (
    "preset",
    "format",
    "key_order",
    "stabiliser",
    "only",
    "but",
    "block_q",
    "block_k",
    "T",
    "N",
    "input",
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
    drifts      those of the trainings (`drift.trainings.Drifts`)
    trained_on  the devices of the trainings
    """

    cells: Mapping[Place, Mapping[int, Row]]
    sites: Mapping[tuple[str, str], Row]
    failed: tuple[Row, ...] = ()
    drifts: Drifts = field(default_factory=dict)
    trained_on: Sequence[str] = ()

    def values(self, point: Point, metric: str) -> Values:
        """Return a metric of METRICS or DERIVED, or SITE.METRIC of an event, by seed.

        It is NaN where there is none.
        """
        return {seed: self._number(row, metric) for seed, row in self.rows(point).items()}

    def rows(self, point: Point) -> Mapping[int, Row]:
        """Return a condition's cells by seed; none if it was not measured."""
        return self.cells.get(place_of(point), {})

    def _number(self, row: Row, metric: str) -> float:
        site, dot, name = metric.partition(".")
        if dot:
            return _float(self.sites.get((row["key"], site), {}).get(name))
        return _derived(row, metric) if metric in DERIVED else _float(row.get(metric))


def read(path: Path, keys: set[str]) -> Results:
    """Return the results of the cells with these keys."""
    from roundscope.tools.sweep.storage.store import read_cells, read_sites

    return gathered(read_cells(path, keys), read_sites(path, keys))


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


def query(point: Point, metric: str) -> str:
    """Return SQL over the results file that gives `Results.values`."""
    site, dot, name = metric.partition(".")
    what = DERIVED.get(metric, metric)
    where = " AND ".join(_condition(axis, value) for axis, value in place_of(point))
    if dot:
        tables = "cells JOIN sites s USING (key)"
        return f"SELECT seed, s.{name} FROM {tables} WHERE s.site = '{site}' AND {where}"
    return f"SELECT seed, {what} FROM cells WHERE {where}"


def shown(point: Point) -> str:
    """Return a point as words of `roundscope sweep`."""
    return " ".join(f"{name}={value}" for name, value in point.items())


def _axes(family: str) -> tuple[str, ...]:
    """Return the axes of a family; real tensors have their own N."""
    return tuple(name for name in AXES if name != "N") if ":" in family else AXES


def _condition(axis: str, value: Value | None) -> str:
    column = f"cells.{quoted(axis)}"  # sites have a column n
    if value is None:
        return f"{column} IS NULL"
    return f"{column} = " + (f"'{value}'" if isinstance(value, str) else str(int(value)))


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
