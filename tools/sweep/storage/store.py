"""The results file: an SQLite database that no crash can damage.

It has a table `cells`, a row per cell, and a table `sites`, a row per cell and site. None but ours
is written or read.
"""

import json
import sqlite3
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roundscope.tools.errors import bad
from roundscope.tools.results import tables
from roundscope.tools.results.tables import add_columns, columns_of, json_of, quoted
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell, Result, is_extra

APPLICATION = int.from_bytes(b"RSsw", "big")  # SQLite's application_id: whose file it is
# SQLite's user_version; raised when a column changes its name or meaning, not when one is added
SCHEMA = 1

JSON_COLUMNS = ("parts", "versions", "plan")
TABLES = ("cells", "sites")
_PATIENCE = 30.0  # seconds to wait for another program's transaction


class Store:
    """A results file that is open for writing; made by `writing`.

    thrown_away: the number of cells that `fresh` has deleted.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, thrown_away: int = 0) -> None:
        self.connection, self.path, self.thrown_away = connection, path, thrown_away

    def statuses(self, keys: Collection[str] | None = None) -> dict[str, str]:
        """Return key -> 'ok' or 'failed'; raises StorageError if the file is damaged."""
        with tables.explained(self.path):
            return statuses(self.connection, keys)

    def save(self, pairs: Sequence[tuple[Cell, Result]]) -> None:
        """Write cells and what was measured of them, all or none.

        They are on the disk when this returns. A row of the same key is replaced. Raises
        StorageError (a full disk), which leaves the file as it was.
        """
        with tables.explained(self.path), _transaction(self.connection) as c:
            for cell, result in pairs:
                add_columns(
                    c, "cells", {name: "TEXT" for name, _ in cell.parameters if is_extra(name)}
                )
                _insert(c, "cells", _row(cell, result))
                c.execute("DELETE FROM sites WHERE key = ?", (result.key,))
                for site, numbers in result.sites.items():
                    _insert(c, "sites", {"key": result.key, "site": site, **numbers})


@contextmanager
def writing(path: Path, fresh: bool = False) -> Iterator[Store]:
    """Open a results file, new or old, and hold it; `fresh` deletes what it has, for good.

    Raises UsageError for a file that cannot be ours (another program's, a folder, another schema),
    StorageError for one that another sweep holds, that is damaged or that cannot be written. None
    of these changes the file.
    """
    path = path.resolve()  # a link and its target are one file
    _check_place(path, "--out")
    with (
        tables.locked(path, "sweep"),
        tables.explained(path),
        closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection,
    ):
        tables.is_ours(connection, path, APPLICATION)  # before the first byte is written
        # WAL lets others read while we write; a file system that lacks it keeps its journal mode
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a commit returns once it is on the disk
        with _transaction(connection):
            lost = prepare(connection, path, fresh)
        yield Store(connection, path, lost)


def statuses(connection: sqlite3.Connection, keys: Collection[str] | None = None) -> dict[str, str]:
    """Return key -> 'ok' or 'failed' of every cell of an open file, or of those with some keys."""
    where, values = with_keys(keys)
    rows = connection.execute(f"SELECT key, status FROM cells{where}", values)
    return {key: sys.intern(str(status)) for key, status in rows}


def with_keys(keys: Collection[str] | None) -> tuple[str, tuple[str, ...]]:
    """Return SQL that chooses the rows of cells with some keys, and its values; of all, for None.

    They are looked up, so that what other sweeps put into the file is not read.
    """
    if keys is None:
        return "", ()
    return " WHERE key IN (SELECT value FROM json_each(?))", (json.dumps([*keys]),)


def count_cells(path: Path) -> int:
    """Return how many cells a results file has."""
    with reading(path) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM cells")
    return int(count)


def read_cells(path: Path, keys: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return cells, all or of some keys, as column -> value, JSON parsed, in order of saving."""
    with reading(path, values=("cells",)) as connection:
        where, chosen = with_keys(keys)
        rows = connection.execute(f"SELECT * FROM cells{where} ORDER BY rowid", chosen)
        found = [dict(row) for row in rows]
    for row in found:
        row |= {name: json_of(path, name, row[name], {}) for name in JSON_COLUMNS if row[name]}
    return found


def read_sites(path: Path, keys: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of the sites of cells, all or of some keys, ordered by key and site."""
    with reading(path, values=("sites",)) as connection:
        where, chosen = with_keys(keys)
        rows = connection.execute(f"SELECT * FROM sites{where} ORDER BY key, site", chosen)
        return [dict(row) for row in rows]


@contextmanager
def reading(path: Path, *, values: Collection[str] = ()) -> Iterator[sqlite3.Connection]:
    """Open a results file for reading, even while a sweep writes it. Raises as `writing` does.

    values: tables of which all values are checked first, for one who reads most of them.
    """
    _check_place(path, "file")
    if not path.exists():
        raise bad("file", str(path), "does not exist; make it with  roundscope sweep")
    with tables.explained(path), closing(_read_only(path)) as connection:
        connection.row_factory = sqlite3.Row
        if not tables.is_ours(connection, path, APPLICATION, "file"):
            raise bad("file", str(path), "holds no results; make it with  roundscope sweep")
        tables.check_version(connection, path, SCHEMA, "read it with the one that wrote it")
        check(connection, path, values)
        yield connection


def _read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that changes no row.

    It may fold in what a killed sweep left in FILE-wal, and tidies up after itself, which one of
    SQLite's mode=ro does not. In a folder that we may not write to it is one that needs no file
    next to it.
    """
    path = path.resolve()
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=_PATIENCE, isolation_level=None
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        connection.close()
        code = error.sqlite_errorcode & 0xFF
        refused = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        left = path.with_name(path.name + "-wal")
        if not refused or (left.exists() and left.stat().st_size):
            raise  # what is in that file would be missing
    return sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)


def _check_place(path: Path, argument: str) -> None:
    if path.is_dir():
        raise bad(argument, str(path), "is a folder; name a file")
    if not path.parent.is_dir():
        raise bad(argument, str(path), "its folder does not exist; make it or choose another file")
    tables.check_start(path, argument)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself after some errors
            connection.execute("ROLLBACK")
        raise


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    columns = ", ".join(map(quoted, row))
    connection.execute(
        f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})",
        list(row.values()),
    )


def _row(cell: Cell, result: Result) -> dict[str, Any]:
    """Return the row of a cell; SQLite stores True as 1 and NaN, which it lacks, as NULL."""
    return {
        "key": result.key,
        "status": "ok" if result.error is None else "failed",
        "error": result.error,
        **dict(cell.parameters),
        **result.metrics,
        "seconds": result.seconds,
        "parts": json.dumps(result.parts),
        "device": result.device,
        "versions": json.dumps(result.versions),
        "plan": json.dumps(cell.plan.describe()),
        "note": cell.note or None,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cell_columns() -> dict[str, str]:
    """Return the columns of `cells` and their types, without axes of single sites."""
    from roundscope.tools.sweep.measuring.metrics import METRICS

    before = {"key": "TEXT PRIMARY KEY", "status": "TEXT NOT NULL", "error": "TEXT"}
    parameters = {
        name: "INTEGER" if isinstance(value, int) else "TEXT" for name, value in DEFAULTS.items()
    }
    texts = dict.fromkeys(("parts", "device", "versions", "plan", "note", "finished"), "TEXT")
    return before | parameters | dict.fromkeys((*METRICS, "seconds"), "REAL") | texts


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


def prepare(connection: sqlite3.Connection, path: Path, fresh: bool) -> int:
    """Make the tables of a new file, or add the columns that an older one lacks.

    `fresh` makes all tables anew. Returns how many cells that deletes. It must be called in a
    transaction. Raises UsageError for a file that is not ours or of another schema.
    """
    ours = tables.is_ours(connection, path, APPLICATION)
    if ours and not fresh:
        repair = "give --fresh to start over, or choose another --out"
        tables.check_version(connection, path, SCHEMA, repair)
        check(connection, path, ("cells",))
    lost = 0
    if ours and fresh and columns_of(connection, "cells"):
        [(lost,)] = connection.execute("SELECT count(*) FROM cells")
    if fresh or not ours:
        for table in TABLES:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE cells ({_declared(cell_columns())})")
        # without row numbers: the long key is then stored once per row and not twice
        keys = "PRIMARY KEY (key, site)) WITHOUT ROWID"
        connection.execute(f"CREATE TABLE sites ({_declared(site_columns())}, {keys}")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    add_columns(connection, "cells", cell_columns())
    add_columns(connection, "sites", site_columns())
    # this is always written, so that a file that cannot be written raises now
    connection.execute(f"PRAGMA user_version = {SCHEMA}")
    return lost


def _declared(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
