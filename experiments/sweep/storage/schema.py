"""The tables of a results file, the check that it is ours, and its faults in one line each."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from roundscope.experiments.errors import StorageError, UsageError, bad, one_line
from roundscope.experiments.sweep.conditions.cell import DEFAULTS

APPLICATION = int.from_bytes(b"RSsw", "big")  # SQLite's application_id: whose file it is
# SQLite's user_version; raised when a column changes its name or meaning, not when one is added
SCHEMA = 1

JSON_COLUMNS = ("parts", "versions", "plan")
TABLES = ("cells", "sites")

_AMISS = {  # the start of SQLite's name of an error -> what it means here
    "SQLITE_FULL": (
        "the disk is full; what was saved before is intact: free some space and run again"
    ),
    "SQLITE_IOERR": "the disk cannot be read or written ({}); is it full or gone?",
    "SQLITE_CORRUPT": (
        "the file is damaged ({}); recover what is left with  sqlite3 FILE .recover  or choose"
        " another file"
    ),
    "SQLITE_NOTADB": "is no SQLite file, or a damaged one; choose another file",
    "SQLITE_READONLY": "cannot be written; change its permissions or choose another --out",
    "SQLITE_CANTOPEN": "cannot be opened ({}); see its permissions and its folder's",
    "SQLITE_PERM": "cannot be opened ({}); see its permissions and its folder's",
    "SQLITE_BUSY": "another program is writing to it; close that one and run again",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a StorageError of one line that names the file.

    Faults of our own SQL are raised as they are.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        for start, text in _AMISS.items():
            if name.startswith(start):
                raise StorageError(f"{path}: {text.format(one_line(error))}") from error
        raise


def quoted(name: str) -> str:
    """Return a column's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def cell_columns() -> dict[str, str]:
    """Return the columns of `cells` and their types, in order.

    Columns for axes of single sites are added when they first occur.
    """
    from roundscope.experiments.sweep.measuring.metrics import METRICS

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
    from roundscope.experiments.sweep.measuring.metrics import SITE_METRICS

    return {"key": "TEXT NOT NULL", "site": "TEXT NOT NULL", **dict.fromkeys(SITE_METRICS, "REAL")}


def prepare(connection: sqlite3.Connection, path: Path, fresh: bool) -> int:
    """Make the tables of a new file, or add the columns that an older one lacks.

    `fresh` makes all tables anew. Returns how many cells that deletes. It must be called in a
    transaction. Raises UsageError for a file that is not ours or of another schema.
    """
    ours = is_ours(connection, path)
    if ours and not fresh:
        check_version(connection, path, "give --fresh to start over, or choose another --out")
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


def is_ours(connection: sqlite3.Connection, path: Path, argument: str = "--out") -> bool:
    """Return whether the file has our tables; False for an empty one.

    Raises UsageError for another program's file.
    """
    [(application,)] = connection.execute("PRAGMA application_id")
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
    if application != APPLICATION and (application or tables):
        raise bad(argument, str(path), "is an SQLite file of another program; choose another file")
    return bool(application == APPLICATION)


def check_version(connection: sqlite3.Connection, path: Path, repair: str) -> None:
    """Raise UsageError for a file of an older or a newer schema.

    repair: what the message advises.
    """
    [(version,)] = connection.execute("PRAGMA user_version")
    if version > SCHEMA:
        raise UsageError(
            f"{path}: written by a newer roundscope (schema {version}, here {SCHEMA}); update"
            f" roundscope, or {repair}"
        )
    if version < SCHEMA:
        raise UsageError(
            f"{path}: written by an older roundscope (schema {version}, here {SCHEMA}); {repair}"
        )


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


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the columns that a table has, and their types, in order."""
    return {name: kind for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")}


def add_columns(connection: sqlite3.Connection, table: str, wanted: Mapping[str, str]) -> None:
    """Add the columns that a table lacks; earlier rows have NULL there."""
    there: Iterable[str] = columns_of(connection, table)
    for name, kind in wanted.items():
        if name not in there:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {kind}")
