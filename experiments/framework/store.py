"""The results file of a study: one table `runs`, a row per run, written launch by launch.

runs   key, condition (JSON), seed, steps, diverged (NULL: it did not), loss (NULL: not finite),
       curve (JSON), extra (JSON), config (JSON), device, finished

Files of older versions, which had a table of their own for each study, are read in when a folder is
opened (`old_files`).
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roundscope.experiments.framework import old_files
from roundscope.tools.errors import StorageError
from roundscope.tools.results.file import results_file
from roundscope.tools.results.run import C, Run
from roundscope.tools.results.tables import RESTORE, explained, json_of

APPLICATION = int.from_bytes(b"RSst", "big")  # SQLite's application_id of such a file
COLUMNS = {
    "key": "TEXT PRIMARY KEY",
    "condition": "TEXT NOT NULL",
    "seed": "INTEGER NOT NULL",
    "steps": "INTEGER NOT NULL",
    "diverged": "INTEGER",
    "loss": "REAL",
    "curve": "TEXT NOT NULL",
    "extra": "TEXT NOT NULL",
    "config": "TEXT",
    "device": "TEXT",
    "finished": "TEXT",
}
TABLES = {"runs": COLUMNS}
MADE = (
    f"CREATE TABLE IF NOT EXISTS runs ({', '.join(f'{n} {kind}' for n, kind in COLUMNS.items())})"
)
COMPUTED = "key, steps, diverged, loss, curve, extra"  # what a `Run` is made of
INSERT = f"INSERT OR REPLACE INTO runs VALUES ({', '.join(f':{name}' for name in COLUMNS)})"


@dataclass(frozen=True, slots=True)
class Store:
    """An open results file; `opened` makes it."""

    connection: sqlite3.Connection
    path: Path

    def keys(self) -> set[str]:
        """Return the keys of all runs that are stored."""
        with explained(self.path):
            return {key for (key,) in self.connection.execute("SELECT key FROM runs")}

    def read(self, wanted: Mapping[C, str]) -> dict[C, Run[C]]:
        """Return the stored runs of conditions, given with their keys, in the order of `wanted`."""
        rows = {key: row for key, *row in self._rows(COMPUTED, wanted.values())}
        return {c: _run(self.path, c, rows[key]) for c, key in wanted.items() if key in rows}

    def add(self, runs: Mapping[str, Run[Any]], config: Mapping[str, Any], device: str) -> None:
        """Store the runs of a launch by key, all or none; they are on the disk on return."""
        about = {
            "config": json.dumps(config),
            "device": device,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with explained(self.path), self.connection:
            self.connection.executemany(INSERT, [_stored(k, r) | about for k, r in runs.items()])

    def devices(self, keys: Iterable[str]) -> list[str]:
        """Return the devices on which these runs were computed."""
        rows = self._rows("DISTINCT device", keys)
        return sorted({device or "a device that is not known" for (device,) in rows})

    def _rows(self, columns: str, keys: Iterable[str]) -> list[tuple[Any, ...]]:
        """Return these columns of the runs with these keys, however many, in no order."""
        text = f"SELECT {columns} FROM runs WHERE key IN (SELECT value FROM json_each(?))"
        with explained(self.path):
            return self.connection.execute(text, (json.dumps(list(keys)),)).fetchall()


def is_there(folder: Path, name: str) -> bool:
    """Return whether a folder has NAME.sqlite, with something in it, or an older one."""
    path = folder / f"{name}.sqlite"
    is_empty = path.is_file() and path.stat().st_size == 0
    return (path.exists() and not is_empty) or old_files.are_in(folder)


@contextmanager
def opened(folder: Path, name: str) -> Iterator[Store]:
    """Open the file NAME.sqlite of a folder, or create it, locked against other processes.

    Results of older versions in the folder are read in first. Raises UsageError for a file of
    another program, StorageError for a file that cannot be used now.
    """
    path = folder / f"{name}.sqlite"
    old_files.set_aside(path)
    with results_file(folder, path.name, APPLICATION, [MADE], TABLES) as (connection, resolved):
        old_files.read_in(connection, folder)
        yield Store(connection, resolved)


class _Extra(dict[str, Any]):
    """The numbers that a study stores beside losses, by name.

    A name that the file lacks raises StorageError, which names the file.
    """

    def __init__(self, found: Iterable[Any] = (), path: Path | str = "results") -> None:
        super().__init__(found)  # of pairs where `dataclasses.asdict` copies it
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise StorageError(f"{self.path}: extra of a run lacks {name}; {RESTORE} file")


def _stored(key: str, r: Run[Any]) -> dict[str, Any]:
    condition = asdict(r.condition)
    return {
        "key": key,
        "condition": json.dumps(condition, default=str),
        "seed": r.seed,
        "steps": r.steps,
        "diverged": r.diverged,
        "loss": _finite(r.loss),
        "curve": json.dumps(_finite(r.curve)),
        "extra": json.dumps(_finite(r.extra)),
    }


def _run(path: Path, condition: C, row: Sequence[Any]) -> Run[C]:
    steps, diverged, loss, curve, extra = row
    return Run(
        condition=condition,
        steps=steps,
        diverged=diverged,
        loss=_number(loss),
        curve=_number(json_of(path, "a curve", curve, [list])),
        extra=_Extra(_number(json_of(path, "extra", extra, dict)), path),
    )


def _finite(x: Any) -> Any:
    """Return nested numbers as JSON data, with None for those that are not finite."""
    if isinstance(x, Mapping):
        return {name: _finite(each) for name, each in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(each) for each in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _number(x: Any) -> Any:
    """Return the reverse of `_finite`: lists become tuples, None becomes NaN."""
    if isinstance(x, dict):
        return {name: _number(each) for name, each in x.items()}
    if isinstance(x, list):
        return tuple(_number(each) for each in x)
    return math.nan if x is None else x
