"""A results file as a `Frame`: which parameters vary, and every cell's place among their values.

There are no pictures and no statistics here.
"""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.formats.format import format_named
from roundscope.experiments.errors import bad
from roundscope.experiments.sweep.conditions.cell import DEFAULTS, Value, is_extra
from roundscope.experiments.sweep.measuring.metrics import METRICS
from roundscope.experiments.sweep.storage.schema import columns_of, quoted
from roundscope.experiments.sweep.storage.store import reading

Row = dict[str, Any]
HEAVY = ("plan", "parts")  # columns that no picture needs
# where the second equals the first in every cell, the two are one axis
TOGETHER = {"S": "T", "block_k": "block_q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A parameter with several values among the cells that are ok.

    label  its name in pictures: "tile" where both sides of the tile are equal throughout
    also   parameters that advance with it
    """

    name: str
    label: str
    values: tuple[Value, ...]
    also: tuple[str, ...] = ()

    @property
    def numeric(self) -> bool:
        """Return whether the values are numbers, in ascending order."""
        return all(isinstance(value, int) for value in self.values)

    def word(self, code: int) -> str:
        """Return a value as text."""
        return str(self.values[code])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The cells of a sweep. A condition is a cell without its seed.

    rows       cells that are ok;  failed: the other cells
    repeated   the number of cells of which the file has a later one
    names      parameters that vary among all cells, failed ones too
    axes       the axes;  codes (cells, axes): the index of each cell's value of each axis
    condition  (cells,) numbers of conditions, from 0;  numbers: metrics by name, (cells,) each
    """

    path: Path
    rows: list[Row]
    failed: list[Row]
    repeated: int
    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    codes: np.ndarray
    condition: np.ndarray
    numbers: dict[str, np.ndarray]

    def metric(self, name: str) -> np.ndarray:
        """Return a metric of every cell that is ok; NaN where there is none."""
        return self.numbers[name]

    def code(self, axis: Axis) -> np.ndarray:
        """Return every cell's value of an axis, as an index of its values."""
        return np.asarray(self.codes[:, self.axes.index(axis)])

    def seeds(self) -> np.ndarray:
        """Return every cell's seed."""
        return np.array([row["seed"] for row in self.rows], dtype=np.int64)

    def axis(self, name: str) -> Axis | None:
        """Return the axis of that name, None if it does not vary."""
        return next((axis for axis in self.axes if name in (axis.name, *axis.also)), None)


def frame_of(path: Path, keys: Set[str] | None = None) -> Frame:
    """Return the frame of a results file, or of the cells with some keys.

    Raises UsageError for one without cells, and as `store.reading`.
    """
    cells = [row for row in _cells(path) if keys is None or row["key"] in keys]
    if not cells:
        raise bad("file", str(path), "holds no cells; fill it with  roundscope sweep")
    names = parameters(cells)
    latest = list({tuple(row[name] for name in names): row for row in cells}.values())
    rows = [row for row in latest if row["status"] == "ok"]
    axes = _axes(rows, [name for name in names if name != "seed"])
    codes = np.array(
        [[axis.values.index(row[axis.name]) for axis in axes] for row in rows], dtype=np.int64
    )
    codes = codes.reshape(len(rows), len(axes))
    condition = np.zeros(len(rows), np.int64)
    if axes:
        condition = np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)
    varying = tuple(name for name in names if len({row[name] for row in latest}) > 1)
    failed = [row for row in latest if row["status"] != "ok"]
    repeated = len(cells) - len(latest)
    return Frame(
        path=path,
        rows=rows,
        failed=failed,
        repeated=repeated,
        names=varying,
        axes=axes,
        codes=codes,
        condition=condition,
        numbers={name: _column(rows, name) for name in METRICS},
    )


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)


def parameters(rows: Sequence[Row]) -> list[str]:
    """Return the columns that are parameters, those of single sites last."""
    return [*DEFAULTS, *sorted(name for name in rows[0] if is_extra(name))]


def sites_of(path: Path, keys: Sequence[str]) -> dict[str, dict[str, Row]]:
    """Return key -> site -> its columns, of the cells named."""
    with reading(path) as connection:
        query = "SELECT * FROM sites WHERE key = ?"
        return {
            key: {row["site"]: dict(row) for row in connection.execute(query, (key,))}
            for key in keys
        }


def _cells(path: Path) -> list[Row]:
    """Return every cell without its HEAVY columns, a later one last.

    Parameters are in the words of the command line.
    """
    with reading(path) as connection:
        columns = [name for name in columns_of(connection, "cells") if name not in HEAVY]
        query = f"SELECT {', '.join(map(quoted, columns))} FROM cells ORDER BY rowid"
        return [_worded(dict(row)) for row in connection.execute(query)]


def _worded(row: Row) -> Row:
    for name, value in row.items():
        if value is None and is_extra(name):
            row[name] = "preset"  # the cell was saved before this axis occurred
        elif type(DEFAULTS.get(name)) is bool:
            row[name] = "true" if value else "false"
    return row


def _axes(rows: Sequence[Row], names: Sequence[str]) -> tuple[Axis, ...]:
    """Return the axes: the parameters that vary.

    Parameters of which each value of one goes with one value of the other are one axis, named as
    the first.
    """
    columns = {name: [row[name] for row in rows] for name in names}
    varying = [name for name in names if len(set(columns[name])) > 1]
    hidden = [a for a, b in TOGETHER.items() if columns[a] == columns[b]]
    axes: list[Axis] = []
    for name in (n for n in varying if n not in hidden):
        twins = (i for i, axis in enumerate(axes) if _paired(columns[axis.name], columns[name]))
        twin = next(twins, None)
        if twin is None:
            equal = tuple(a for a in hidden if TOGETHER[a] == name)
            label = "tile" if "block_k" in equal else name
            values = _ordered(name, set(columns[name]))
            axes.append(Axis(name=name, label=label, values=values, also=equal))
        else:
            old = axes[twin]
            axes[twin] = replace(old, label=_with(old.label, name), also=(*old.also, name))
    return tuple(axes)


def _with(label: str, name: str) -> str:
    """Return a label with one more name: T (with N and H)."""
    return f"{label[:-1]} and {name})" if label.endswith(")") else f"{label} (with {name})"


def _paired(a: Sequence[Value], b: Sequence[Value]) -> bool:
    return len(set(a)) == len(set(b)) == len(set(zip(a, b, strict=True)))


def _ordered(name: str, values: set[Value]) -> tuple[Value, ...]:
    """Return the values in order: numbers ascending, formats by precision.

    Others have the default first and then go by name, with numbers in names compared as numbers.
    """

    def by_format(v: Value) -> Any:
        return (v != "preset", _precision(str(v)))

    def by_name(v: Value) -> Any:
        return (v != DEFAULTS.get(name.partition(".")[0]), _natural(str(v)))

    if all(isinstance(value, int) for value in values):
        return tuple(sorted(values))
    return tuple(sorted(values, key=by_format if name.partition(".")[0] == "format" else by_name))


def _precision(name: str) -> tuple[int, int, str]:
    if name == "preset":
        return 0, 0, name
    name = name.partition(":")[0]
    f = BLOCK_NAMED[name].element.format if name in BLOCK_NAMED else format_named(name)
    return f.precision, f.emax - f.emin, name


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]
