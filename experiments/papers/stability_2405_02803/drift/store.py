"""The table `drift` of golden.sqlite: a row per pair, seed and look.

A training is written in one transaction.

drift    key (`Training.key`), pair, seed, step, max_difference, wasserstein, loss, gap, device,
         versions (JSON)
"""

import json
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roundscope.experiments.papers.stability_2405_02803.drift.trainings import (
    Apart,
    Drifts,
    Training,
)
from roundscope.tools.sweep.storage.store import Store, reading

NUMBERS = ("max_difference", "wasserstein", "loss", "gap")
MADE = f"""CREATE TABLE IF NOT EXISTS drift (
key TEXT, pair TEXT, seed INTEGER, step INTEGER, {", ".join(f"{n} REAL" for n in NUMBERS)},
device TEXT, versions TEXT, PRIMARY KEY (key, pair, seed, step)) WITHOUT ROWID"""


def save(store: Store, t: Training, found: Drifts, device: str, versions: dict[str, str]) -> None:
    """Store what a training gave, all or none; it is on the disk when this returns."""
    about = (device, json.dumps(versions))
    rows = [
        (t.key, pair, seed, step, *(_null(getattr(a, n)[k]) for n in NUMBERS), *about)
        for pair, by_seed in found.items()
        for seed, a in by_seed.items()
        for k, step in enumerate(t.steps)
    ]
    store.connection.execute("BEGIN IMMEDIATE")
    with store.connection:
        store.connection.execute(MADE)
        store.connection.executemany(
            f"INSERT OR REPLACE INTO drift VALUES ({', '.join('?' * (4 + len(NUMBERS) + 2))})", rows
        )


def read(path: Path, t: Training) -> Drifts:
    """Return what is stored of a training; nothing if it was not run."""
    rows = _rows(path, t)
    places = dict.fromkeys((str(row["pair"]), int(row["seed"])) for row in rows)
    found: dict[str, dict[int, Apart]] = {}
    for pair, seed in places:
        own = [row for row in rows if (row["pair"], row["seed"]) == (pair, seed)]
        found.setdefault(pair, {})[seed] = Apart(**{n: _column(own, n) for n in NUMBERS})
    return found


def devices(path: Path, t: Training) -> list[str]:
    """Return where a training was run."""
    return sorted({str(row["device"]) for row in _rows(path, t)})


def query(t: Training, pair: str, metric: str, step: int) -> str:
    """Return SQL over golden.sqlite that gives a column at a look, by seed."""
    return (
        f"SELECT seed, {metric} FROM drift WHERE key = '{t.key}' AND pair = '{pair}' AND step ="
        f" {step}"
    )


def _rows(path: Path, t: Training) -> list[sqlite3.Row]:
    with reading(path) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'drift'").fetchone():
            return []
        return connection.execute(
            "SELECT * FROM drift WHERE key = ? ORDER BY pair, seed, step", (t.key,)
        ).fetchall()


def _column(rows: Sequence[sqlite3.Row], name: str) -> np.ndarray:
    return np.array([math.nan if row[name] is None else row[name] for row in rows])


def _null(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None
