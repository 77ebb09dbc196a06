"""DIR/proxy.sqlite: a row per run, written launch by launch in one transaction; and the states at which arms part.

runs    key, name, changes (JSON), lr, seed, steps, diverged (NULL: censored), spikes, loss (NULL: not finite), curve (JSON: steps done,
        largest loss, gradient norm), measures (JSON: steps done, name -> number), config (JSON), device, finished
begin-KEY.safetensors   the state, losses and gradient norms of a run at the step from which its arms differ
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
from roundscope.experiments.sweep.storage.schema import explained
from roundscope.experiments.train.student.arms import Arm, key
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.results import Result

NAME = "proxy.sqlite"
APPLICATION = int.from_bytes(b"RSpx", "big")  # SQLite's application_id: whose file it is
COLUMNS = {
    "key": "TEXT PRIMARY KEY", "name": "TEXT NOT NULL", "changes": "TEXT NOT NULL", "lr": "REAL NOT NULL", "seed": "INTEGER NOT NULL",
    "steps": "INTEGER NOT NULL", "diverged": "INTEGER", "spikes": "INTEGER NOT NULL", "loss": "REAL", "curve": "TEXT NOT NULL",
    "measures": "TEXT NOT NULL", "config": "TEXT", "device": "TEXT", "finished": "TEXT",
}  # fmt: skip
MADE = f"CREATE TABLE IF NOT EXISTS runs ({', '.join(f'{n} {kind}' for n, kind in COLUMNS.items())})"


class Store:
    """A results file that is open; made by `opened`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    def read(self, config: Config, arms: Sequence[Arm]) -> dict[Arm, Result]:
        """What is there already of some arms, under their own names."""
        found = {arm: self._one(config, arm) for arm in arms}
        return {arm: result for arm, result in found.items() if result is not None}

    def devices(self) -> list[str]:
        """Where the results were computed."""
        with explained(self.path):
            return [row[0] for row in self.connection.execute("SELECT DISTINCT device FROM runs ORDER BY device")]

    def add(self, config: Config, results: Sequence[Result], device: str) -> None:
        """The results of a launch, all or none. They are on the disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [_row(config, r) | {"device": device, "finished": now} for r in results]
        values = ", ".join(f":{name}" for name in COLUMNS)
        with explained(self.path), self.connection:
            self.connection.executemany(f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({values})", rows)

    def _one(self, config: Config, arm: Arm) -> Result | None:
        names = ("steps", "diverged", "spikes", "loss", "curve", "measures")
        with explained(self.path):
            row = self.connection.execute(f"SELECT {', '.join(names)} FROM runs WHERE key = ?", (key(config, arm),)).fetchone()
        if row is None:
            return None
        steps, diverged, spikes, loss, curve, measures = row
        points = tuple((step, number(x), number(norm)) for step, x, norm in json.loads(curve))
        found = tuple((step, {name: number(v) for name, v in own.items()}) for step, own in json.loads(measures))
        return Result(arm=arm, steps=steps, diverged=diverged, spikes=spikes, loss=number(loss), curve=points, measures=found)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """The results file of a folder, new or old, held against other processes. Raises UsageError or StorageError."""
    with results_file(folder, NAME, APPLICATION, [MADE]) as (connection, path):
        yield Store(connection, path)


def _row(config: Config, r: Result) -> dict[str, Any]:
    curve = [[_finite(x) for x in point] for point in r.curve]
    measures = [[step, {name: _finite(v) for name, v in own.items()}] for step, own in r.measures]
    return {
        "key": key(config, r.arm), "name": r.arm.name, "changes": json.dumps(r.arm.changes), "lr": r.arm.lr, "seed": r.arm.seed,
        "steps": r.steps, "diverged": r.diverged, "spikes": r.spikes, "loss": _finite(r.loss), "curve": json.dumps(curve),
        "measures": json.dumps(measures), "config": json.dumps(asdict(config)),
    }  # fmt: skip


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
