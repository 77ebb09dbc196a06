"""Exports a results file as CSV or Parquet."""

import csv
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from roundscope.emu.whole_files import whole_file
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.results.folder import storing
from roundscope.tools.results.tables import columns_of, quoted
from roundscope.tools.sweep.conditions.cell import DEFAULTS, is_extra
from roundscope.tools.sweep.storage.store import JSON_COLUMNS, TABLES, reading

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that spreadsheets compute
_PIECE = 10_000  # rows in memory at a time
_ORDERED = {
    "cells": "cells ORDER BY rowid",
    "sites": "sites LEFT JOIN cells USING (key) ORDER BY sites.key, sites.site",
}


def export(path: Path, out: Path, table: str = "cells", *, raw: bool = False) -> int:
    """Write a table of a results file to OUT.csv or OUT.parquet and return the number of its rows.

    Numbers keep every bit; NULL is an empty field of CSV and null in Parquet; JSON stays text. In
    CSV, a text that a spreadsheet would take for a formula has a ' before it, unless it is `raw`. A
    file OUT is replaced when the new one is complete. Raises UsageError for another ending, another
    table, one without rows, or no pyarrow.
    """
    write = {".csv": _write_csv, ".parquet": _write_parquet}.get(out.suffix)
    if write is None:
        raise bad("out", str(out), "end it in .csv or .parquet")
    if table not in TABLES:
        raise bad("table", table, f"use {' or '.join(TABLES)}")
    with reading(path, values=(table,)) as connection, storing(out), whole_file(out) as unfinished:
        if next(connection.execute(f"SELECT 1 FROM {table} LIMIT 1"), None) is None:
            raise bad("file", str(path), f"holds no {table}; fill it with  roundscope sweep")
        columns = _columns(connection, table)
        names = ", ".join(f"{of}.{quoted(name)}" for of, name, _ in columns)
        rows = connection.execute(f"SELECT {names} FROM {_ORDERED[table]}")
        pieces = iter(lambda: rows.fetchmany(_PIECE), [])
        return write({name: kind for _, name, kind in columns}, pieces, unfinished, raw)


def lost(path: Path) -> str:
    """Return how many cells of a results file have lost entries, in a sentence; empty for none."""
    from roundscope.tools.sweep.measuring.metrics import NOT_FINITE

    with reading(path) as connection:
        names = [quoted(n) for n in columns_of(connection, "cells") if n in NOT_FINITE]
        some = " OR ".join(f"{name} > 0" for name in names) or "0"
        [(count,)] = connection.execute(f"SELECT count(*) FROM cells WHERE {some}")
    if not count:
        return ""
    return (
        f"{count} cells have NaN or infinite results, counted in {', '.join(names)}: their errors"
        " are infinite and their signed means empty"
    )


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str, str]]:
    """Return the columns: the tables that they are of, their names and their types.

    The order is parameters, axes of single sites, results, and columns of JSON last. A row of sites
    has the axes of its cell behind its own columns.
    """

    def rank(name: str) -> int:
        return 0 if name in DEFAULTS else 1 if is_extra(name) else 3 if name in JSON_COLUMNS else 2

    cells = columns_of(connection, "cells")
    if table == "cells":
        return [("cells", name, cells[name]) for name in sorted(cells, key=rank)]
    own = [("sites", name, kind) for name, kind in columns_of(connection, "sites").items()]
    return own + [("cells", name, kind) for name, kind in cells.items() if rank(name) < 2]


def _as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: such a text has a ' before it."""
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _write_csv(kinds: dict[str, str], pieces: Iterator[list[Any]], file: Path, raw: bool) -> int:
    count = 0
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(kinds if raw else map(_as_text, kinds))
        for piece in pieces:
            writer.writerows(piece if raw else [[*map(_as_text, row)] for row in piece])
            count += len(piece)
    return count


def _write_parquet(
    kinds: dict[str, str], pieces: Iterator[list[Any]], file: Path, raw: bool
) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow: run  pip install 'roundscope[parquet]'  or end the file in .csv"
        ) from None
    types: dict[str, Callable[[], Any]] = {"REAL": pa.float64, "INTEGER": pa.int64}
    schema = pa.schema([(name, types.get(kind, pa.string)()) for name, kind in kinds.items()])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for piece in pieces:
            columns = zip(*piece, strict=True)
            writer.write_table(pa.table(dict(zip(kinds, columns, strict=True)), schema=schema))
            count += len(piece)
    return count
