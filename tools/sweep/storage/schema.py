"""The tables of a sweep's results file, and the check that it is ours."""

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path

from roundscope.tools.results import tables
from roundscope.tools.results.tables import add_columns, columns_of, quoted
from roundscope.tools.sweep.conditions.cell import DEFAULTS

APPLICATION = int.from_bytes(b"RSsw", "big")  # SQLite's application_id: whose file it is
# SQLite's user_version; raised when a column changes its name or meaning, not when one is added
SCHEMA = 1

JSON_COLUMNS = ("parts", "versions", "plan")
TABLES = ("cells", "sites")


def cell_columns() -> dict[str, str]:
    """Return the columns of `cells` and their types, in order.

    Columns for axes of single sites are added when they first occur.
    """
    from roundscope.tools.sweep.measuring.metrics import METRICS

    before = {"key": "TEXT PRIMARY KEY", "status": "TEXT NOT NULL", "error": "TEXT"}
    parameters = {
        name: "INTEGER" if isinstance(value, int) else "TEXT" for name, value in DEFAULTS.items()
    }
    after = {
        "seconds": "REAL",
        "parts": "TEXT",
        "device": "TEXT",
        "versions": "TEXT",
        "plan": "TEXT",
        "note": "TEXT",
        "finished": "TEXT",
    }
    return before | parameters | dict.fromkeys(METRICS, "REAL") | after


def site_columns() -> dict[str, str]:
    """Return the columns of `sites` and their types, in order."""
    from roundscope.tools.sweep.measuring.metrics import SITE_METRICS

    return {"key": "TEXT NOT NULL", "site": "TEXT NOT NULL", **dict.fromkeys(SITE_METRICS, "REAL")}


def check(connection: sqlite3.Connection, path: Path, values: Collection[str] = ()) -> None:
    """Raise StorageError for a file of ours that lacks a table or a column of every version.

    values: the tables of which all values are checked too, which reads all of their rows.
    """
    from roundscope.tools.sweep.measuring.metrics import METRICS, SITE_METRICS

    wanted = {"cells": cell_columns(), "sites": site_columns()}
    tables.check_columns(connection, path, wanted, later=(*METRICS, *SITE_METRICS, "note"))
    full = dict.fromkeys(DEFAULTS, " NOT NULL")
    wanted["cells"] = {name: kind + full.get(name, "") for name, kind in cell_columns().items()}
    tables.check_values(connection, path, {table: wanted[table] for table in values})


def is_ours(connection: sqlite3.Connection, path: Path, argument: str = "--out") -> bool:
    """Return whether the file has our tables; False for an empty one.

    Raises UsageError for another program's file.
    """
    return tables.is_ours(connection, path, APPLICATION, argument)


def check_version(connection: sqlite3.Connection, path: Path, repair: str) -> None:
    """Raise UsageError for a file of an older or a newer schema; repair: what it advises."""
    tables.check_version(connection, path, SCHEMA, repair)


def prepare(connection: sqlite3.Connection, path: Path, fresh: bool) -> int:
    """Make the tables of a new file, or add the columns that an older one lacks.

    `fresh` makes all tables anew. Returns how many cells that deletes. It must be called in a
    transaction. Raises UsageError for a file that is not ours or of another schema.
    """
    ours = is_ours(connection, path)
    if ours and not fresh:
        check_version(connection, path, "give --fresh to start over, or choose another --out")
        check(connection, path, ("cells",))
    lost = _count(connection) if ours and fresh else 0
    if fresh or not ours:
        _create(connection)
    add_columns(connection, "cells", cell_columns())
    add_columns(connection, "sites", site_columns())
    # this is always written, so that a file that cannot be written raises now
    connection.execute(f"PRAGMA user_version = {SCHEMA}")
    return lost


def _count(connection: sqlite3.Connection) -> int:
    if not columns_of(connection, "cells"):
        return 0
    [(count,)] = connection.execute("SELECT count(*) FROM cells")
    return int(count)


def _create(connection: sqlite3.Connection) -> None:
    for table in TABLES:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    connection.execute(f"CREATE TABLE cells ({_declared(cell_columns())})")
    # without row numbers: the long key is then stored once per row and not twice
    connection.execute(
        f"CREATE TABLE sites ({_declared(site_columns())}, PRIMARY KEY (key, site)) WITHOUT ROWID"
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION}")


def _declared(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
