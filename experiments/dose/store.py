"""DIR/dose.sqlite: a row of `doses` per run, a row of `curves` per run and look; a launch is written in one transaction.

doses    key, site (NULL: none named), mode, bits, rate, steps, seed, diverged (NULL: censored), loss (NULL: not finite), growth,
         config (JSON), device, finished, words, also, offset, shares (JSON)
curves   key, step, loss, w_q
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.dose.arms import ADDED, Dose, described, key
from experiments.dose.results import Result
from experiments.errors import StorageError, bad
from experiments.sweep.lock import locked
from experiments.sweep.schema import explained
from experiments.train.config import Config

NAME = "dose.sqlite"
APPLICATION = int.from_bytes(b"RSdo", "big")  # SQLite's application_id: whose file it is
LATER = (*ADDED, "shares")  # columns that a file of an older version has not
COLUMNS = {
    "key": "TEXT PRIMARY KEY", "site": "TEXT", "mode": "TEXT NOT NULL", "bits": "INTEGER NOT NULL", "rate": "REAL NOT NULL",
    "steps": "INTEGER NOT NULL", "seed": "INTEGER NOT NULL", "diverged": "INTEGER", "loss": "REAL", "growth": "REAL",
    "config": "TEXT", "device": "TEXT", "finished": "TEXT", **dict.fromkeys(LATER, "TEXT"),
}  # fmt: skip


class Store:
    """A results file that is open; made by `opened`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    def read(self, config: Config, doses: Sequence[Dose]) -> dict[Dose, Result]:
        """What is there already of some doses."""
        found = {dose: self._one(dose, key(config, dose)) for dose in doses}
        return {dose: result for dose, result in found.items() if result is not None}

    def devices(self) -> list[str]:
        """Where the results were computed."""
        with explained(self.path):
            return [row[0] for row in self.connection.execute("SELECT DISTINCT device FROM doses ORDER BY device")]

    def add(self, config: Config, results: Sequence[Result], device: str) -> None:
        """The results of a launch, all or none. They are on the disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [_row(config, r) | {"device": device, "finished": now} for r in results]
        names = ", ".join(COLUMNS)
        with explained(self.path), self.connection:
            self.connection.executemany(
                f"INSERT OR REPLACE INTO doses ({names}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})", rows
            )
            points = [(row["key"], *point) for row, r in zip(rows, results, strict=True) for point in r.curve]
            self.connection.executemany("INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?)", points)

    def _one(self, dose: Dose, name: str) -> Result | None:
        with explained(self.path):
            row = self.connection.execute("SELECT diverged, loss, shares FROM doses WHERE key = ?", (name,)).fetchone()
            curve = self.connection.execute("SELECT step, loss, w_q FROM curves WHERE key = ? ORDER BY step", (name,)).fetchall()
        if row is None:
            return None
        looks = tuple((step, _number(loss), _number(norm)) for step, loss, norm in curve)
        return Result(dose=dose, diverged=row[0], loss=_number(row[1]), curve=looks, shares=_shares(row[2]))


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """The results file of a folder, new or old, held against other processes. Raises UsageError or StorageError."""
    path = (folder / NAME).resolve()
    with _held(path), explained(path), closing(sqlite3.connect(path, timeout=30.0)) as connection:
        [(application,)] = connection.execute("PRAGMA application_id")
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
        if application != APPLICATION and (application or tables):
            raise bad("--out", str(folder), f"its {NAME} is of another program; choose another folder")
        connection.execute(f"CREATE TABLE IF NOT EXISTS doses ({', '.join(f'{n} {kind}' for n, kind in COLUMNS.items())})")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS curves (key TEXT, step INTEGER, loss REAL, w_q REAL, PRIMARY KEY (key, step)) WITHOUT ROWID"
        )
        old = {row[1] for row in connection.execute("PRAGMA table_info(doses)")}
        for name in (name for name in LATER if name not in old):
            connection.execute(f"ALTER TABLE doses ADD COLUMN {name} TEXT")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.commit()
        yield Store(connection, path)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    try:
        with locked(path):
            yield
    except StorageError as error:
        raise StorageError(str(error).replace("another sweep", "another run")) from None


def _row(config: Config, r: Result) -> dict[str, Any]:
    own = {"key": key(config, r.dose), "diverged": r.diverged, "loss": r.loss, "growth": r.growth, "config": json.dumps(asdict(config))}
    found = described(r.dose)
    return found | own | {name: json.dumps(found[name]) for name in ADDED} | {"shares": json.dumps(r.shares)}


def _shares(text: str | None) -> tuple[tuple[int, float, float], ...]:
    return tuple((step, mean, most) for step, mean, most in json.loads(text or "[]"))


def _number(x: float | None) -> float:
    return math.nan if x is None else x
