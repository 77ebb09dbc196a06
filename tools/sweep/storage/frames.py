"""A results file as a `Frame`: which parameters vary, and every cell's place among their values.

There are no pictures and no statistics here.
"""

from array import array
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.formats.format import format_named
from roundscope.tools.errors import StorageError, bad
from roundscope.tools.results.tables import RESTORE, columns_of, quoted
from roundscope.tools.sweep.conditions.cell import (
    DEFAULTS,
    OF_CALL,
    Value,
    is_extra,
    lacking,
)
from roundscope.tools.sweep.measuring.metrics import METRICS
from roundscope.tools.sweep.storage.store import reading, with_keys
from roundscope.tools.tensors.layers import natural

Row = dict[str, Any]
# beside parameters
OWN = ("key", "status", "error", "device", "versions", "note", "finished", "seconds")
# of these, texts that many cells share
SEVERAL = ("status", "device", "versions", "note", "finished")
PIECE = 2_000  # rows of the file in memory at a time
# where the second equals the first in every cell, the two are one axis
TOGETHER = {"S": "T", "block_k": "block_q"}
# what a file of tensors says, so that it is no axis if it changes with the input alone
OF_FILE = ("T", "S", "N", "H", "causal", *OF_CALL)


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


class Rows(Sequence[Row]):
    """Cells, column by column: a file has millions of numbers, but few different words.

    columns  name -> (cells,) values: parameters, in the words of the command line, and OWN
    A row of it, by its number, is made when it is asked for.
    """

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.columns["key"])

    def __getitem__(self, i: Any) -> Any:
        """Return the row of one cell."""
        return {name: column[i] for name, column in self.columns.items()}

    def column(self, name: str) -> np.ndarray:
        """Return a column of all cells."""
        return self.columns[name]

    def those(self, which: np.ndarray) -> "Rows":
        """Return some of the cells; which: their numbers, or a bool for each."""
        return Rows({name: column[which] for name, column in self.columns.items()})

    def followed_by(self, other: "Rows") -> "Rows":
        """Return these cells and then those."""
        return Rows(
            {name: np.concatenate([x, other.columns[name]]) for name, x in self.columns.items()}
        )


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
    rows: Rows
    failed: Rows
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
        return self.rows.column("seed").astype(np.int64)

    def axis(self, name: str) -> Axis | None:
        """Return the axis of that name, None if it does not vary."""
        return next((axis for axis in self.axes if name in (axis.name, *axis.also)), None)


def frame_of(path: Path, keys: Set[str] | None = None) -> Frame:
    """Return the frame of a results file, or of some keys. Raises UsageError if it has no cells."""
    cells, numbers = _read(path, keys)
    if not len(cells):
        raise bad("file", str(path), "holds no cells; fill it with  roundscope sweep")
    names = parameters(cells)
    latest = _latest(cells, names)
    fine = cells.column("status")[latest] == "ok"
    rows, failed = cells.those(latest[fine]), cells.those(latest[~fine])
    axes = _axes(rows, [name for name in names if name != "seed"])
    codes = np.empty((len(rows), len(axes)), np.int64)
    for i, axis in enumerate(axes):
        codes[:, i] = places(rows.column(axis.name), axis.values)
    condition = np.zeros(len(rows), np.int64)
    if axes:
        condition = np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)
    return Frame(
        path=path,
        rows=rows,
        failed=failed,
        repeated=len(cells) - len(latest),
        names=tuple(name for name in names if len(set(cells.column(name)[latest])) > 1),
        axes=axes,
        codes=codes,
        condition=condition,
        numbers={name: x[latest[fine]] for name, x in numbers.items()},
    )


def _latest(cells: Rows, names: Sequence[str]) -> np.ndarray:
    """Return the numbers of the latest cells of equal parameters, where the first ones stood."""
    columns = [cells.column(name) for name in names]
    number = together([places(column, list(dict.fromkeys(column))) for column in columns])
    first = np.unique(number, return_index=True)[1]
    last = len(number) - 1 - np.unique(number[::-1], return_index=True)[1]
    return np.asarray(last[np.argsort(first)])


def parameters(rows: Rows) -> list[str]:
    """Return the columns that are parameters, those of single sites last."""
    return [*DEFAULTS, *sorted(name for name in rows.columns if is_extra(name))]


def sites_of(
    path: Path, keys: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Return name -> site -> the numbers that the cells have there, of some columns and cells."""
    found: dict[str, dict[str, array[float]]] = {name: {} for name in names}
    with reading(path) as connection:
        connection.row_factory = None  # tuples
        held = columns_of(connection, "sites")  # SQLite takes the name of another for a text
        names = [name for name in names if name in held]
        query = f"SELECT site, {', '.join(map(quoted, names))} FROM sites WHERE key = ?"
        for key in keys:
            for site, *numbers in connection.execute(query, (key,)):
                for name, x in zip(names, numbers, strict=True):
                    if not isinstance(x, float | int | None):
                        raise StorageError(
                            f"{path}: {name} of {site!r} is no number; {RESTORE} file"
                        )
                    if x is not None:
                        found[name].setdefault(site, array("d")).append(x)
    return {name: {site: np.array(x) for site, x in of.items()} for name, of in found.items()}


def _read(path: Path, keys: Set[str] | None) -> tuple[Rows, dict[str, np.ndarray]]:
    """Return the cells, a later one last, and their METRICS; of the columns, only what is needed.

    The file is read in pieces. What it holds as text is kept once for all cells that have it.
    """
    # a sweep that reads the cells of a part has checked the table when it began
    with reading(path, values=("cells",) if keys is None else ()) as connection:
        connection.row_factory = None  # tuples
        held = columns_of(connection, "cells")
        own = [name for name in held if name in OWN or name in DEFAULTS or is_extra(name)]
        metrics = [name for name in METRICS if name in held]
        found: dict[str, list[np.ndarray]] = {name: [] for name in (*own, *metrics)}
        same: dict[str, dict[Any, Any]] = {name: {} for name in own if name not in OWN}
        same |= {name: {} for name in SEVERAL}
        where, values = with_keys(keys)
        which = f"WHERE rowid IN (SELECT rowid FROM cells{where})" if where else ""
        query = f"SELECT {', '.join(map(quoted, found))} FROM cells {which} ORDER BY rowid"
        rows = connection.execute(query, values)
        while piece := rows.fetchmany(PIECE):
            for name, column in zip(found, zip(*piece, strict=True), strict=True):
                found[name].append(_column(name, column, same.get(name)))
    empty = np.empty(0, object)
    columns = {name: np.concatenate(found.pop(name) or [empty]) for name in tuple(found)}
    none = np.full(len(columns["key"]), np.nan)  # a file of before this metric
    return (
        Rows({name: columns[name] for name in own}),
        {name: columns.get(name, none) for name in METRICS},
    )


def _column(name: str, values: Sequence[Any], same: dict[Any, Any] | None) -> np.ndarray:
    """Return a piece of a column: an array of binary64, or of parameters in words.

    same: the values seen before, of a column that has few; equal ones become one object.
    """
    if name in METRICS:
        return np.array([np.nan if x is None else x for x in values], np.float64)
    found = np.empty(len(values), object)
    found[:] = values
    if same is not None:
        if type(DEFAULTS.get(name)) is bool:
            found[:] = ["true" if x else "false" for x in values]
        elif is_extra(name):
            found[:] = [lacking(name) if x is None else x for x in values]
        found[:] = [same.setdefault(x, x) for x in found]
    return found


def _axes(rows: Rows, names: Sequence[str]) -> tuple[Axis, ...]:
    """Return the axes: the parameters that vary.

    Parameters of which each value of one goes with one value of the other are one axis, named as
    the first. What a file says of its call goes with the input, if no other value was asked for.
    """
    columns = {name: rows.column(name) for name in names}
    varying = [name for name in names if len(set(columns[name])) > 1]
    hidden = [a for a, b in TOGETHER.items() if (columns[a] == columns[b]).all()]
    told = [
        name for name in varying if name in OF_FILE and _follows(columns[name], columns["input"])
    ]
    axes: list[Axis] = []
    for name in (n for n in varying if n not in (*hidden, *told)):
        own = columns[name]
        pairs = ((i, columns[axis.name]) for i, axis in enumerate(axes))
        twin = next((i for i, x in pairs if _follows(x, own) and _follows(own, x)), None)
        if twin is None:
            equal = tuple(a for a in hidden if TOGETHER[a] == name)
            label = "tile" if "block_k" in equal else name
            if name == "input" and told:
                equal, label = (*equal, *told), f"{label} (with {' and '.join(told)})"
            values = _ordered(name, set(columns[name]))
            axes.append(Axis(name=name, label=label, values=values, also=equal))
        else:
            old = axes[twin]
            # T (with N and H)
            start = f"{old.label[:-1]} and" if old.label.endswith(")") else f"{old.label} (with"
            axes[twin] = replace(old, label=f"{start} {name})", also=(*old.also, name))
    return tuple(axes)


def _follows(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether a column has one value for each of the other."""
    return len(set(b)) == len(set(zip(a, b, strict=True)))


def _ordered(name: str, values: set[Value]) -> tuple[Value, ...]:
    """Return the values in order: numbers ascending, formats by precision.

    Others have the default first and then go by name, with numbers in names compared as numbers.
    """
    kind = name.partition(".")[0]

    def by_format(v: Value) -> Any:
        if v == "preset":
            return False, 0, 0, v
        name = str(v).partition(":")[0]
        f = BLOCK_NAMED[name].element.format if name in BLOCK_NAMED else format_named(name)
        return True, f.precision, f.emax - f.emin, name

    def by_name(v: Value) -> Any:
        return (v != DEFAULTS.get(kind), natural(str(v)))

    if all(isinstance(value, int) for value in values):
        return tuple(sorted(values))
    return tuple(sorted(values, key=by_format if kind == "format" else by_name))


def numbered(x: np.ndarray) -> np.ndarray:
    """Return the rank of each number among the different ones."""
    return np.unique(x, return_inverse=True)[1].reshape(-1)


def bits(x: np.ndarray) -> np.ndarray:
    """Return a number for each binary64, the same for those of the same bits. All NaN are one."""
    return numbered(np.where(np.isnan(x), np.nan, x).view(np.int64))


def places(column: np.ndarray, values: Sequence[object]) -> np.ndarray:
    """Return the index in `values` of each value of a column of objects."""
    place = {value: i for i, value in enumerate(values)}
    return np.fromiter((place[value] for value in column), np.int64, len(column))


def together(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number for each row of columns of numbers from 0, the same for equal rows."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:  # as few numbers as there are different rows, so that none is too large
        number = numbered(number * (int(column.max(initial=0)) + 1) + column)
    return number
