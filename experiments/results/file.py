"""A command's SQLite file of results: opened or created, locked, and checked to be its own."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import StorageError, bad
from roundscope.experiments.results.lock import locked
from roundscope.experiments.sweep.storage.schema import explained


@contextmanager
def results_file(
    folder: Path, name: str, application: int, made: Sequence[str], schema: int | None = None
) -> Iterator[tuple[sqlite3.Connection, Path]]:
    """Open the results file of a folder, or create it; yield the connection and the file's path.

    folder, name   where the file is, and its name
    application    SQLite's application_id, by which the file is known to belong to this command
    made           CREATE statements, which are executed each time
    schema         the newest version of the tables that is known here, if they have versions

    Raises UsageError for the file of another program or of a newer version, StorageError for a file
    that cannot be used now.
    """
    path = (folder / name).resolve()
    with held(path), explained(path), closing(sqlite3.connect(path, timeout=30.0)) as connection:
        [(owner,)] = connection.execute("PRAGMA application_id")
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
        if owner != application and (owner or tables):
            raise bad(
                "--out", str(folder), f"its {name} is of another program; choose another folder"
            )
        [(version,)] = connection.execute("PRAGMA user_version")
        if schema is not None and version > schema:
            raise bad(
                "--out",
                str(folder),
                f"its {name} was written by a newer roundscope (schema {version}, here {schema});"
                " update roundscope, or choose another folder",
            )
        for text in made:
            connection.execute(text)
        connection.execute(f"PRAGMA application_id = {application}")
        connection.commit()
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
