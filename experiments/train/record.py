"""The log of a training run: RUN/run.sqlite, which can be read while the run continues.

runs    one row per start of the command: its config, arms, data, versions, device, where it began
steps   one row per arm and step: loss, gradient_norm, lr
heads   one row per arm, monitored step, layer and head: what `monitor` measures
sites   one row per arm, monitored step and rounding event: mean error in ulps
alarms  one row per alarm of `spikes`
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roundscope.tools.errors import StorageError, bad
from roundscope.tools.results.file import results_file
from roundscope.tools.results.tables import (
    RESTORE,
    add_columns,
    check_columns,
    check_start,
    check_values,
    check_version,
    explained,
    is_ours,
)

NAME = "run.sqlite"
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
        """Add a row of `runs`, and delete the rows of other tables from `step` on.

        Those steps are computed again, to the same bits.
        """
        with explained(self.path):
            for table in ("steps", "heads", "sites", "alarms"):
                self.connection.execute(f"DELETE FROM {table} WHERE step >= ?", (step,))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.add(
            "runs",
            [
                {
                    "began": now,
                    "step": step,
                    **{k: v if isinstance(v, str) else json.dumps(v) for k, v in columns.items()},
                }
            ],
        )
        self.commit()

    def add(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows with the columns of the first; NaN becomes NULL.

        Raises StorageError (a full disk).
        """
        if not rows:
            return
        columns = tuple(rows[0])
        text = (
            f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES"
            f" ({', '.join('?' * len(columns))})"
        )
        with explained(self.path):
            self.connection.executemany(text, ([row[c] for c in columns] for row in rows))

    def running(self) -> dict[tuple[str, int, int], tuple[float, float]]:
        """Return the sums of monitored delta errors and their squares, by (arm, layer, head)."""
        text = (
            "SELECT arm, layer, head, total(delta_sum), total(delta_square) FROM heads GROUP BY"
            " arm, layer, head"
        )
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
    made = [
        f"CREATE TABLE IF NOT EXISTS {name} ({_declared(columns)}, PRIMARY KEY ({', '.join(key)}))"
        + ("" if name == "runs" else " WITHOUT ROWID")
        for name, (columns, key) in TABLES.items()
    ]
    with results_file(folder, NAME, APPLICATION, made, COLUMNS, schema=SCHEMA, later=LATER) as (
        connection,
        path,
    ):
        connection.execute("PRAGMA journal_mode = WAL")  # readers while we write
        connection.execute("PRAGMA synchronous = FULL")
        for name, (columns, _) in TABLES.items():
            add_columns(connection, name, columns)  # of a log that an older version made
        connection.commit()
        yield Log(connection, path)
        connection.commit()


def _declared(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def is_log(path: Path) -> bool:
    """Return whether a file is the log of a training run."""
    if not path.is_file():
        return False
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=30.0)
        ) as connection:
            [(found,)] = connection.execute("PRAGMA application_id")
    except sqlite3.Error:
        return False
    return bool(found == APPLICATION)


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
    with (
        explained(path),
        closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=30.0)
        ) as connection,
    ):
        if not is_ours(connection, path, APPLICATION, "DIR"):
            raise bad("DIR", str(folder), f"its {NAME} is empty; restore it from a copy")
        check_version(connection, path, SCHEMA, "read it with the one that wrote it")
        check_columns(connection, path, COLUMNS, LATER)
        check_values(connection, path, {table: COLUMNS[table]})
        connection.row_factory = sqlite3.Row
        return [
            dict(row)
            for row in connection.execute(f"SELECT * FROM {table}{where} ORDER BY {key}", values)
        ]
