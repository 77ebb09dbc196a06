"""DIR/dose.sqlite: a row of `doses` per run, a row of `curves` per run and look; a launch is written in one transaction.

doses    key, site (NULL: none named), mode, bits, rate, steps, seed, diverged (NULL: censored), loss (NULL: not finite), growth,
         config (JSON), device, finished, words, also, offset, shares (JSON)
curves   key, step, loss, w_q
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roundscope.experiments.results.file import number, results_file
from roundscope.experiments.studies.dose.arms import ADDED, Dose, described, key
from roundscope.experiments.studies.dose.results import Result
from roundscope.experiments.sweep.storage.schema import explained
from roundscope.experiments.train.config import Config

NAME = "dose.sqlite"
APPLICATION = int.from_bytes(b"RSdo", "big")  # SQLite's application_id: whose file it is
LATER = (*ADDED, "shares")  # columns that a file of an older version has not
COLUMNS = {
    "key": "TEXT PRIMARY KEY", "site": "TEXT", "mode": "TEXT NOT NULL", "bits": "INTEGER NOT NULL", "rate": "REAL NOT NULL",
    "steps": "INTEGER NOT NULL", "seed": "INTEGER NOT NULL", "diverged": "INTEGER", "loss": "REAL", "growth": "REAL",
    "config": "TEXT", "device": "TEXT", "finished": "TEXT", **dict.fromkeys(LATER, "TEXT"),
}  # fmt: skip
MADE = (
    f"CREATE TABLE IF NOT EXISTS doses ({', '.join(f'{n} {kind}' for n, kind in COLUMNS.items())})",
    "CREATE TABLE IF NOT EXISTS curves (key TEXT, step INTEGER, loss REAL, w_q REAL, PRIMARY KEY (key, step)) WITHOUT ROWID",
)


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
        looks = tuple((step, number(loss), number(norm)) for step, loss, norm in curve)
        return Result(dose=dose, diverged=row[0], loss=number(row[1]), curve=looks, shares=_shares(row[2]))


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """The results file of a folder, new or old, held against other processes. Raises UsageError or StorageError."""
    with results_file(folder, NAME, APPLICATION, MADE) as (connection, path):
        old = {row[1] for row in connection.execute("PRAGMA table_info(doses)")}
        for name in (name for name in LATER if name not in old):
            connection.execute(f"ALTER TABLE doses ADD COLUMN {name} TEXT")
        connection.commit()
        yield Store(connection, path)


def _row(config: Config, r: Result) -> dict[str, Any]:
    own = {"key": key(config, r.dose), "diverged": r.diverged, "loss": r.loss, "growth": r.growth, "config": json.dumps(asdict(config))}
    found = described(r.dose)
    return found | own | {name: json.dumps(found[name]) for name in ADDED} | {"shares": json.dumps(r.shares)}


def _shares(text: str | None) -> tuple[tuple[int, float, float], ...]:
    return tuple((step, mean, most) for step, mean, most in json.loads(text or "[]"))
