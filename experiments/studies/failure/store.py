"""DIR/qiu-yao.sqlite: a row of `trials` per run; a launch is written in one transaction.

trials   key, changes, tiles, steps, seed, diverged (NULL: censored), loss (NULL: it diverged), norm, heads, rest,
         curve, config (JSON), device, finished
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roundscope.experiments.results.file import number, results_file
from roundscope.experiments.studies.failure.results import Result
from roundscope.experiments.studies.failure.scale import Scale
from roundscope.experiments.studies.failure.trials import Trial, key, rate_of
from roundscope.experiments.sweep.storage.schema import explained

NAME = "qiu-yao.sqlite"
APPLICATION = int.from_bytes(b"RSqy", "big")  # SQLite's application_id: whose file it is
COLUMNS = {
    "key": "TEXT PRIMARY KEY", "changes": "TEXT NOT NULL", "tiles": "INTEGER NOT NULL", "steps": "INTEGER NOT NULL",
    "seed": "INTEGER NOT NULL", "diverged": "INTEGER", "loss": "REAL", "norm": "REAL",
    "heads": "TEXT", "rest": "TEXT", "curve": "TEXT", "config": "TEXT", "device": "TEXT", "finished": "TEXT",
}  # fmt: skip
MADE = f"CREATE TABLE IF NOT EXISTS trials ({', '.join(f'{n} {kind}' for n, kind in COLUMNS.items())})"


class Store:
    """A results file that is open; made by `opened`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    def read(self, scale: Scale, trials: Sequence[Trial]) -> dict[Trial, Result]:
        """What is there already of some trials."""
        found = {trial: self._one(trial, key(scale, trial)) for trial in dict.fromkeys(trials)}
        return {trial: result for trial, result in found.items() if result is not None}

    def devices(self) -> list[str]:
        """Where the results were computed."""
        with explained(self.path):
            return [row[0] for row in self.connection.execute("SELECT DISTINCT device FROM trials ORDER BY device")]

    def add(self, scale: Scale, results: Sequence[Result], device: str) -> None:
        """The results of a launch, all or none. They are on the disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [_row(scale, r) | {"device": device, "finished": now} for r in results]
        text = f"INSERT OR REPLACE INTO trials ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})"
        with explained(self.path), self.connection:
            self.connection.executemany(text, rows)

    def _one(self, trial: Trial, name: str) -> Result | None:
        columns = ("diverged", "loss", "norm", "heads", "rest", "curve")
        with explained(self.path):
            row = self.connection.execute(f"SELECT {', '.join(columns)} FROM trials WHERE key = ?", (name,)).fetchone()
        if row is None:
            return None
        diverged, loss, norm, heads, rest, curve = row
        looks = tuple((step, number(loss), number(norm)) for step, loss, norm in json.loads(curve))
        sums = tuple(tuple(tuple(map(number, head)) for head in layer) for layer in json.loads(rest))
        return Result(trial=trial, diverged=diverged, loss=number(loss), norm=norm, rest=sums,
                      heads=tuple(map(tuple, json.loads(heads))), curve=looks)  # fmt: skip


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """The results file of a folder, new or old, held against other processes. Raises UsageError or StorageError."""
    with results_file(folder, NAME, APPLICATION, [MADE]) as (connection, path):
        yield Store(connection, path)


def _row(scale: Scale, r: Result) -> dict[str, Any]:
    own = {"key": key(scale, r.trial), "diverged": r.diverged, "loss": r.loss, "norm": r.norm, "config": _config(scale, r.trial)}
    lists = {name: json.dumps(_finite(getattr(r, name))) for name in ("heads", "rest", "curve")}
    return asdict(r.trial) | {"changes": "; ".join(r.trial.changes)} | own | lists


def _config(scale: Scale, trial: Trial) -> str:
    return json.dumps(asdict(scale.config) | {"rate": rate_of(scale, trial)})


def _finite(x: Any) -> Any:
    """Lists of numbers, None for those that are not finite."""
    return [_finite(each) for each in x] if isinstance(x, tuple) else x if math.isfinite(x) else None
