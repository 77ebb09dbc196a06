"""A command's SQLite file of results: opened or created, locked, and checked to be its own."""

import math
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from roundscope.tools.errors import StorageError
from roundscope.tools.results.lock import locked
from roundscope.tools.results.tables import (
    Tables,
    check_columns,
    check_start,
    check_values,
    check_version,
    explained,
    is_ours,
)


@contextmanager
def results_file(
    folder: Path,
    name: str,
    application: int,
    made: Sequence[str],
    tables: Tables,
    *,
    schema: int = 0,
    later: Collection[str] = (),
) -> Iterator[tuple[sqlite3.Connection, Path]]:
    """Open the results file of a folder, or create it; yield the connection and the file's path.

    folder, name   where the file is, and its name
    application    SQLite's application_id, by which the file is known to belong to this command
    made           CREATE statements, which are executed each time
    tables         what files of ours have;  later: the columns that those of older versions lack
    schema         the version of the tables, SQLite's user_version

    Raises UsageError for the file of another program or version, StorageError for a file that
    cannot be used now, or that has not the tables and the values of one of ours.
    """
    path = (folder / name).resolve()
    check_start(path, "--out")
    with held(path), explained(path), closing(sqlite3.connect(path, timeout=30.0)) as connection:
        ours = is_ours(connection, path, application)
        if ours:
            check_version(connection, path, schema, "choose another folder")
            check_columns(connection, path, tables, later)
            check_values(connection, path, tables)
        with connection:  # all or none, so that one who is killed here leaves no file of nobody
            connection.execute("BEGIN IMMEDIATE")
            for text in made:
                connection.execute(text)
            if not ours:  # each of these is a change of the file
                connection.execute(f"PRAGMA application_id = {application}")
                connection.execute(f"PRAGMA user_version = {schema}")
        yield connection, path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a results file while the context is open.

    Raises StorageError if another process has the lock; its message speaks of a run, not of a
    sweep.
    """
    try:
        with locked(path):
            yield
    except StorageError as error:
        raise StorageError(str(error).replace("another sweep", "another run")) from None


def number(x: Any) -> Any:
    """Return a stored number, NaN for SQL's NULL."""
    return math.nan if x is None else x
