"""The log of a training run: RUN/run.sqlite, which can be read while the run continues.

runs    one row per start of the command: its config, arms, data, versions, device, where it began
steps   one row per arm and step: loss, gradient_norm, lr
heads   one row per arm, monitored step, layer and head: what `monitor` measures
sites   one row per arm, monitored step and rounding event: mean error in ulps
alarms  one row per alarm of `spikes`
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.config import LOG, NEWER
from roundscope.experiments.train.settings import TYPES
from roundscope.tools.errors import StorageError, bad
from roundscope.tools.results.tables import (
    RESTORE,
    add_columns,
    check_columns,
    check_start,
    check_values,
    check_version,
    explained,
    is_ours,
    json_of,
    results_file,
)

NAME = LOG
APPLICATION = int.from_bytes(b"RStr", "big")  # SQLite's application_id: whose file it is
SCHEMA = 1
KEYS = {"arm": "TEXT NOT NULL", "step": "INTEGER NOT NULL"}
TABLES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {  # columns, key
    "runs": (
        {"id": "INTEGER", "began": "TEXT", "step": "INTEGER"}
        | dict.fromkeys(("config", "arms", "data", "versions", "device", "origin"), "TEXT"),
        ("id",),
    ),
    "steps": (KEYS | dict.fromkeys(("loss", "gradient_norm", "lr"), "REAL"), ("arm", "step")),
    "heads": (
        KEYS
        | dict.fromkeys(("layer", "head"), "INTEGER NOT NULL")
        | dict.fromkeys(("w_q_norm", "several_ones", "v_skew"), "REAL")
        | dict.fromkeys(
            ("delta_sum", "delta_square", "coherence", "running_sum", "running_coherence"), "REAL"
        )
        | {"gaps": "TEXT", "drift": "REAL", "w_q_gradient": "REAL"},
        ("arm", "step", "layer", "head"),
    ),
    "sites": (
        KEYS | {"site": "TEXT NOT NULL"} | dict.fromkeys(("mean_ulps", "mean_abs_ulps"), "REAL"),
        ("arm", "step", "site"),
    ),
    "alarms": (
        KEYS
        | dict.fromkeys(("series", "kind"), "TEXT NOT NULL")
        | dict.fromkeys(("value", "bound"), "REAL"),
        ("arm", "step", "series", "kind"),
    ),
}
COLUMNS = {name: columns for name, (columns, _) in TABLES.items()}
LATER = ("drift", "w_q_gradient")  # columns that logs of older versions lack


class Log:
    """A log that is open for writing; made by `writing`. Rows are on the disk after `commit`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path

    def begin(self, step: int, **columns: Any) -> None:
        """Add a row of `runs`; rows from `step` on, which come again in every bit, are deleted."""
        with explained(self.path):
            for table in ("steps", "heads", "sites", "alarms"):
                self.connection.execute(f"DELETE FROM {table} WHERE step >= ?", (step,))
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in columns.items()}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.add("runs", [{"began": now, "step": step, **texts}])
        self.commit()

    def add(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows with the columns of the first; NaN becomes NULL. Raises StorageError."""
        if not rows:
            return
        columns = ", ".join(rows[0])
        values = ", ".join(f":{name}" for name in rows[0])
        text = f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({values})"
        with explained(self.path):
            self.connection.executemany(text, rows)

    def running(self) -> dict[tuple[str, int, int], tuple[float, float]]:
        """Return the sums of monitored delta errors and their squares, by (arm, layer, head)."""
        by, sums = "arm, layer, head", "total(delta_sum), total(delta_square)"
        text = f"SELECT {by}, {sums} FROM heads GROUP BY {by}"
        with explained(self.path):
            return {tuple(row[:3]): tuple(row[3:]) for row in self.connection.execute(text)}

    def commit(self) -> None:
        """Write what was added; it is on the disk when this returns."""
        with explained(self.path):
            self.connection.commit()


@contextmanager
def writing(folder: Path) -> Iterator[Log]:
    """Open the log of a run's folder, new or old, and hold the folder.

    Raises UsageError for a file of another program or of a newer version, StorageError if another
    process holds it.
    """
    made = []
    for name, (columns, key) in TABLES.items():
        declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        table = f"{name} ({declared}, PRIMARY KEY ({', '.join(key)}))"
        end = "" if name == "runs" else " WITHOUT ROWID"
        made.append(f"CREATE TABLE IF NOT EXISTS {table}{end}")
    with results_file(folder, NAME, APPLICATION, made, COLUMNS, schema=SCHEMA, later=LATER) as (
        connection,
        path,
    ):
        connection.execute("PRAGMA journal_mode = WAL")  # readers while we write
        connection.execute("PRAGMA synchronous = FULL")
        for name, columns in COLUMNS.items():
            add_columns(connection, name, columns)  # of a log that an older version made
        connection.commit()
        yield Log(connection, path)
        connection.commit()


def is_log(path: Path) -> bool:
    """Return whether a file is the log of a training run."""
    if not path.is_file():
        return False
    try:
        with closing(_opened(path)) as connection:
            [(found,)] = connection.execute("PRAGMA application_id")
    except sqlite3.Error:
        return False
    return bool(found == APPLICATION)


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=30.0)


def last_start(folder: Path) -> dict[str, Any]:
    """Return the last row of `runs`. Raises as `rows` does, and where there is none."""
    starts = rows(folder, "runs")
    if not starts:
        raise StorageError(f"{folder / NAME}: its table runs is empty; {RESTORE} file")
    return starts[-1]


def rows(folder: Path, table: str, arm: str | None = None) -> list[dict[str, Any]]:
    """Return all rows of a table in the order of its key, of one arm if given.

    Raises UsageError where there is no run, or one of another version, StorageError for a log with
    other tables or values than those that we write.
    """
    path = folder / NAME
    if not path.is_file():
        raise bad("DIR", str(folder), "holds no run; make one with  roundscope train --out DIR")
    check_start(path, "DIR")
    key = ", ".join(TABLES[table][1])
    where, values = ("", ()) if arm is None else (" WHERE arm = ?", (arm,))
    with explained(path), closing(_opened(path)) as connection:
        if not is_ours(connection, path, APPLICATION, "DIR"):
            raise bad("DIR", str(folder), f"its {NAME} is empty; restore it from a copy")
        check_version(connection, path, SCHEMA, "read it with the one that wrote it")
        check_columns(connection, path, COLUMNS, LATER)
        check_values(connection, path, {table: COLUMNS[table]})
        connection.row_factory = sqlite3.Row
        query = f"SELECT * FROM {table}{where} ORDER BY {key}"
        return list(map(dict, connection.execute(query, values)))


ARMS = {"arms": [{"name": str, "lr": float, "seed": int}]}  # of the JSON in `runs`
CONFIG = {name: object for name in TYPES if name not in NEWER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm of a run.

    name, group       its name, with and without the seed
    changes           as words, None if no checkpoint has them;  lr: the peak rate
    step, loss, norm  (steps,) the numbers of the steps, their losses and gradient norms; NaN if not
                      finite
    looks             (looks,) the monitored steps
    drift, w_q        (looks, layers, heads), NaN where not measured
    alarms            rows of the log
    """

    name: str
    group: str
    changes: tuple[str, ...] | None
    lr: float
    step: np.ndarray
    loss: np.ndarray
    norm: np.ndarray
    looks: np.ndarray
    drift: np.ndarray
    w_q: np.ndarray
    alarms: Sequence[dict[str, Any]]

    @property
    def diverged(self) -> int | None:
        """The step of the first alarm of the loss that does not end; None without."""
        kinds = ("not finite", "rise", "stay")
        return min(
            (a["step"] for a in self.alarms if a["series"] == "loss" and a["kind"] in kinds),
            default=None,
        )

    @property
    def worst(self) -> tuple[int, int, float]:
        """The layer and head of the largest drift of all looks, and the drift; NaN without any."""
        if not np.isfinite(self.drift).any():
            return 0, 0, math.nan
        _, layer, head = np.unravel_index(np.nanargmax(self.drift), self.drift.shape)
        return int(layer), int(head), float(np.nanmax(self.drift))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run.

    folder   its folder;  config: by name;  arms: its arms
    about    how it was last started (a row of `runs`)
    """

    folder: Path
    config: dict[str, Any]
    about: dict[str, Any]
    arms: tuple[Arm, ...]

    @property
    def groups(self) -> list[str]:
        """The names of arms without their seeds, in their order."""
        return list(dict.fromkeys(arm.group for arm in self.arms))


def training(folder: Path) -> Training:
    """Return the run of a folder. Raises UsageError where there is none, or none with a step."""
    path = folder / NAME
    about, steps = last_start(folder), rows(folder, "steps")
    if not steps:
        repair = "has no step in its log yet; wait for the first monitor or checkpoint"
        raise bad("RUN", str(folder), repair)
    heads, alarms = rows(folder, "heads"), rows(folder, "alarms")
    kept = checkpoint.about(folder) or {"arms": []}
    changes = {arm["name"]: tuple(arm["changes"]) for arm in kept["arms"]}
    arms = []
    for arm in json_of(path, "arms of a start", about["arms"], ARMS)["arms"]:
        name = arm["name"]
        own = [row for row in steps if row["arm"] == name]
        looks, drift, w_q = _looks(path, [row for row in heads if row["arm"] == name])
        found = Arm(
            name=name,
            group=name.removesuffix(f"/{arm['seed']}"),
            changes=changes.get(name),
            lr=arm["lr"],
            step=np.array([row["step"] for row in own], int),
            loss=_numbers(own, "loss"),
            norm=_numbers(own, "gradient_norm"),
            looks=looks,
            drift=drift,
            w_q=w_q,
            alarms=[row for row in alarms if row["arm"] == name],
        )
        arms += [found] if own else []
    if not arms:
        raise StorageError(f"{path}: its steps are of other arms than its runs; {RESTORE} file")
    config = json_of(path, "config of a start", about["config"], CONFIG)
    return Training(folder=folder, config=config, about=about, arms=tuple(arms))


def _numbers(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row.get(name) for row in rows], float)  # NaN for None


def _looks(path: Path, rows: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (steps, drift, ||W_Q||) of rows of `heads`; StorageError where a head is missing."""
    looks = np.array(sorted({row["step"] for row in rows}), int)
    layers, heads = (1 + max((row[name] for row in rows), default=-1) for name in ("layer", "head"))
    shape = looks.size, layers, heads
    if min(layers, heads) < 0 or math.prod(shape) != len(rows):
        raise StorageError(f"{path}: a look in its table heads lacks a head; {RESTORE} file")
    drift, norm = (_numbers(rows, name).reshape(shape) for name in ("drift", "w_q_norm"))
    return looks, drift, norm
