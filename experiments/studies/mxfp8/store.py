"""DIR/mxfp8.sqlite: a row of `trials` per training of the GPT, a row of `audit` per operand; a launch is written in one transaction.

trials  key, name, changes, lr, seed, diverged (NULL: censored), loss (NULL: not finite), curve (JSON), config (JSON), device, finished
audit   key (of a trial), step, layer, matrix, operand, element, rule, and the numbers of `audit`
The proxy's runs are in proxy.sqlite beside it (`experiments.studies.proxy.store`).
"""

import hashlib
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
from roundscope.experiments.studies.mxfp8.arms import Trial
from roundscope.experiments.studies.mxfp8.audit import NUMBERS
from roundscope.experiments.studies.mxfp8.launches import Result
from roundscope.experiments.studies.mxfp8.scale import Scale
from roundscope.experiments.sweep.storage.schema import explained
from roundscope.experiments.train.config import unusual

NAME = "mxfp8.sqlite"
APPLICATION = int.from_bytes(b"RSm8", "big")  # SQLite's application_id: whose file it is
TRIALS = ("key", "name", "changes", "lr", "seed", "diverged", "loss", "curve", "config", "device", "finished")
AUDIT = ("key", "step", "layer", "matrix", "operand", "element", "rule", *NUMBERS, "apart")
MADE = (
    f"CREATE TABLE IF NOT EXISTS trials ({', '.join(TRIALS)}, PRIMARY KEY (key))",
    f"CREATE TABLE IF NOT EXISTS audit ({', '.join(AUDIT)}, PRIMARY KEY ({', '.join(AUDIT[:7])}))",
)


def key(scale: Scale, t: Trial) -> str:
    """The name of a result: of all that decides it but versions, device and the arm's name."""
    kept = [unusual(scale.gpt), t.changes, t.lr, t.seed, scale.audited]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:24]


class Store:
    """A results file that is open; made by `opened`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    def read(self, scale: Scale, trials: Sequence[Trial]) -> dict[Trial, Result]:
        """What is there already of some trials."""
        found = {trial: self._one(trial, key(scale, trial)) for trial in trials}
        return {trial: result for trial, result in found.items() if result is not None}

    def devices(self) -> list[str]:
        """Where the results were computed."""
        with explained(self.path):
            return [row[0] for row in self.connection.execute("SELECT DISTINCT device FROM trials ORDER BY device")]

    def add(self, scale: Scale, results: Sequence[Result], device: str) -> None:
        """The results of a launch, all or none. They are on the disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [_row(scale, r) | {"device": device, "finished": now} for r in results]
        audits = [{"key": key(scale, r.trial)} | {n: _finite(v) for n, v in row.items()} for r in results for row in r.audit]
        with explained(self.path), self.connection:
            for table, columns, own in (("trials", TRIALS, rows), ("audit", AUDIT, audits)):
                values = ", ".join(f":{name}" for name in columns)
                self.connection.executemany(f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({values})", own)

    def _one(self, trial: Trial, name: str) -> Result | None:
        with explained(self.path):
            row = self.connection.execute("SELECT diverged, loss, curve FROM trials WHERE key = ?", (name,)).fetchone()
            own = self.connection.execute(f"SELECT {', '.join(AUDIT[1:])} FROM audit WHERE key = ?", (name,)).fetchall()
        if row is None:
            return None
        curve = tuple((step, number(loss)) for step, loss in json.loads(row[2]))
        audit = tuple(dict(zip(AUDIT[1:], map(number, values), strict=True)) for values in own)
        return Result(trial=trial, diverged=row[0], loss=number(row[1]), curve=curve, audit=audit)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """The results file of a folder, new or old, held against other processes. Raises UsageError or StorageError."""
    with results_file(folder, NAME, APPLICATION, MADE) as (connection, path):
        yield Store(connection, path)


def _row(scale: Scale, r: Result) -> dict[str, Any]:
    own = {"key": key(scale, r.trial), "diverged": r.diverged, "loss": _finite(r.loss), "config": json.dumps(asdict(scale.gpt))}
    return asdict(r.trial) | own | {"curve": json.dumps([[step, _finite(loss)] for step, loss in r.curve])}


def _finite(x: Any) -> Any:
    return None if isinstance(x, float) and not math.isfinite(x) else x
