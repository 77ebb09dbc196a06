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
        return write(connection, table, unfinished, raw=raw)


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


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the columns and their types.

    The order is parameters, axes of single sites, results, and columns of JSON last. A row of sites
    has the axes of its cell behind its own columns.
    """
    kinds = columns_of(connection, table)
    if table == "sites":
        return kinds | _axes(connection)

    def rank(name: str) -> int:
        return 0 if name in DEFAULTS else 1 if is_extra(name) else 3 if name in JSON_COLUMNS else 2

    return {name: kinds[name] for name in sorted(kinds, key=rank)}


def _axes(connection: sqlite3.Connection) -> dict[str, str]:
    """The columns of cells that say what a cell is, and their types."""
    kinds = columns_of(connection, "cells")
    return {name: kind for name, kind in kinds.items() if name in DEFAULTS or is_extra(name)}


def _pieces(connection: sqlite3.Connection, table: str) -> Iterator[list[Any]]:
    if table == "cells":
        names = ", ".join(map(quoted, _columns(connection, table)))
        rows = connection.execute(f"SELECT {names} FROM cells ORDER BY rowid")
    else:
        own = [f"sites.{quoted(name)}" for name in columns_of(connection, "sites")]
        names = ", ".join(own + [f"cells.{quoted(name)}" for name in _axes(connection)])
        rows = connection.execute(
            f"SELECT {names} FROM sites LEFT JOIN cells USING (key) ORDER BY sites.key, sites.site"
        )
    while piece := rows.fetchmany(_PIECE):
        yield piece


def _as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: such a text has a ' before it."""
    if not isinstance(cell, str) or not cell.startswith(FORMULA) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _write_csv(connection: sqlite3.Connection, table: str, file: Path, *, raw: bool) -> int:
    count = 0
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        names = list(_columns(connection, table))
        writer.writerow(names if raw else map(_as_text, names))
        for piece in _pieces(connection, table):
            writer.writerows(piece if raw else [[*map(_as_text, row)] for row in piece])
            count += len(piece)
    return count


def _write_parquet(connection: sqlite3.Connection, table: str, file: Path, *, raw: bool) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow: run  pip install 'roundscope[parquet]'  or end the file in .csv"
        ) from None
    kinds: dict[str, Callable[[], Any]] = {"REAL": pa.float64, "INTEGER": pa.int64}
    schema = pa.schema(
        [(name, kinds.get(kind, pa.string)()) for name, kind in _columns(connection, table).items()]
    )
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for piece in _pieces(connection, table):
            columns = zip(*piece, strict=True)
            writer.write_table(
                pa.Table.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)],
                    schema=schema,
                )
            )
            count += len(piece)
    return count
