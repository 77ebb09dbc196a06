"""Losses of replays in replays.sqlite, written launch by launch: a diagnosis that was stopped goes on where it was."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from roundscope.experiments.sweep.storage.schema import explained

NAME = "replays.sqlite"


class Kept:
    """The file of a folder, open inside `with`. Raises StorageError for one that is damaged or cannot be written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME

    def __enter__(self) -> "Kept":
        with explained(self.path):
            self.connection = sqlite3.connect(self.path, timeout=30.0)
            self.connection.execute("CREATE TABLE IF NOT EXISTS replays (name TEXT PRIMARY KEY, losses BLOB NOT NULL)")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.connection.close()

    def read(self, names: Sequence[str]) -> np.ndarray | None:
        """Losses (steps, replays); None unless all are there."""
        with explained(self.path):
            rows = [self.connection.execute("SELECT losses FROM replays WHERE name = ?", (name,)).fetchone() for name in names]
        return None if None in rows else np.stack([np.frombuffer(row[0], "<f8") for row in rows], axis=1)

    def write(self, names: Sequence[str], losses: np.ndarray) -> None:
        """Those of a launch, all or none."""
        with explained(self.path), self.connection:
            rows = [(name, column.astype("<f8").tobytes()) for name, column in zip(names, losses.T, strict=True)]
            self.connection.executemany("INSERT OR REPLACE INTO replays VALUES (?, ?)", rows)
