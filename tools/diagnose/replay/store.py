"""Replays in replays.sqlite, written as they come.

A diagnosis that was stopped continues where it was.
"""

import hashlib
import io
import json
import sqlite3
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.tools.errors import StorageError, one_line
from roundscope.tools.results.machine import device, versions
from roundscope.tools.results.tables import (
    RESTORE,
    check_columns,
    check_start,
    check_values,
    explained,
    is_ours,
)
from roundscope.tools.tensors.files import PROBLEMS

NAME = "replays.sqlite"
LARGEST = 1 << 26  # bytes of a state that is kept; a larger one is computed again
APPLICATION = int.from_bytes(b"RSrp", "big")  # SQLite's application_id: whose file it is
TABLES = {
    "replayed": {"name": "TEXT PRIMARY KEY", "losses": "BLOB NOT NULL", "norms": "BLOB NOT NULL"},
    "states": {"name": "TEXT PRIMARY KEY", "arrays": "BLOB NOT NULL"},
}


def digest(*parts: Any) -> str:
    """Return a name for what decides a result, on this machine and with these versions."""
    return hashlib.sha256(json.dumps([_here(), *parts], default=str).encode()).hexdigest()[:32]


@cache
def _here() -> tuple[str, dict[str, str]]:
    return device("xla"), versions("xla")


class Store:
    """The file of a folder; it is opened for each call, so that threads may share it.

    Its methods raise StorageError for a file that is damaged, of another program, or cannot be
    written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        check_start(self.path, "--out")
        with explained(self.path), closing(self._open()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if _is_unsigned(connection) or not is_ours(connection, self.path, APPLICATION):
                for table, columns in TABLES.items():
                    own = ", ".join(f"{name} {kind}" for name, kind in columns.items())
                    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({own})")
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
            check_columns(connection, self.path, TABLES)
            check_values(connection, self.path, TABLES)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30.0)

    def read(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return losses and norms (steps,) of a replay, as far as it went; None for none."""
        with explained(self.path), closing(self._open()) as connection:
            query = "SELECT losses, norms FROM replayed WHERE name = ?"
            row = connection.execute(query, (name,)).fetchone()
        if row is None:
            return None
        if len(row[0]) % 8 or len(row[0]) != len(row[1]):
            raise self._damaged("the losses of a replay are cut short")
        return np.frombuffer(row[0], "<f8"), np.frombuffer(row[1], "<f8")

    def write(self, names: Sequence[str], losses: np.ndarray, norms: np.ndarray) -> None:
        """Write those of a launch, (steps, replays), all or none."""
        blobs = [[column.astype("<f8").tobytes() for column in x.T] for x in (losses, norms)]
        with explained(self.path), closing(self._open()) as connection, connection:
            rows = zip(names, *blobs, strict=True)
            connection.executemany("INSERT OR REPLACE INTO replayed VALUES (?, ?, ?)", rows)

    def arrays(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the arrays that were kept under a name, or None."""
        with explained(self.path), closing(self._open()) as connection:
            row = connection.execute("SELECT arrays FROM states WHERE name = ?", (name,)).fetchone()
        try:
            return None if row is None else dict(np.load(io.BytesIO(row[0]), allow_pickle=False))
        except (*PROBLEMS, OSError, zipfile.BadZipFile) as error:
            raise self._damaged(f"a state cannot be read: {one_line(error)}") from None

    def _damaged(self, why: str) -> StorageError:
        return StorageError(f"{self.path}: {why}; {RESTORE} file, or delete it: replays run anew")

    def keep(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays, unless they are more than `LARGEST` bytes."""
        if sum(x.nbytes for x in arrays.values()) > LARGEST:
            return
        content = io.BytesIO()
        # numpy types the keyword allow_pickle as bool, which no name of ours is
        np.savez(content, **arrays)  # type: ignore[arg-type]
        with explained(self.path), closing(self._open()) as connection, connection:
            row = name, content.getvalue()
            connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", row)


def _is_unsigned(connection: sqlite3.Connection) -> bool:
    """Return whether a file of an older version, to be signed, has our tables alone."""
    [(owner,)] = connection.execute("PRAGMA application_id")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    own = {name for name in names if not name.startswith("sqlite_autoindex")}
    return not owner and own == set(TABLES)
