"""The results file of a study: one table `runs`, a row per run, written launch by launch.

runs   key, condition (JSON), seed, steps, diverged (NULL: it did not), loss (NULL: not finite),
       curve (JSON), extra (JSON), config (JSON), device, finished

Files of older versions, which had a table of their own for each study, are read in when a folder is
opened (`read_in`).
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

from roundscope.tools.errors import StorageError
from roundscope.tools.results.run import C, Run
from roundscope.tools.results.tables import RESTORE, explained, json_of, results_file

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
    return (path.exists() and not (path.is_file() and path.stat().st_size == 0)) or any(
        _application(path) in _BY_ID for path in folder.glob("*.sqlite")
    )


@contextmanager
def opened(folder: Path, name: str) -> Iterator[Store]:
    """Open NAME.sqlite of a folder, or make it, locked. Raises UsageError, StorageError."""
    path = folder / f"{name}.sqlite"
    if _application(path) in _BY_ID:
        path.rename(path.with_name(f"{path.stem}-old.sqlite"))
    with results_file(folder, path.name, APPLICATION, [MADE], TABLES) as (connection, resolved):
        read_in(connection, folder)
        yield Store(connection, resolved)


class _Extra(dict[str, Any]):
    """What a study stores beside losses, by name; one that is lacking raises StorageError."""

    def __init__(self, found: Iterable[Any] = (), path: Path | str = "results") -> None:
        super().__init__(found)  # of pairs where `dataclasses.asdict` copies it
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise StorageError(f"{self.path}: extra of a run lacks {name}; {RESTORE} file")


def _stored(key: str, r: Run[Any]) -> dict[str, Any]:
    return {
        "key": key,
        "condition": json.dumps(asdict(r.condition), default=str),
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


RUNS = "key, condition, seed, steps, diverged, loss, curve, extra, config, device, finished"
_ABOUT = "config, device, finished"
_AUDIT = ", ".join(
    f"'{name}', json(number_text({name}))"
    for name in ("saturated", "underflow", "shrink", "error", "apart")
)
KINDS = {  # application_id -> its rows as rows of `runs`
    b"RSdo": (
        f"""
        SELECT key, json_object('site', site, 'mode', mode, 'bits', bits, 'rate', rate),
            seed, steps, diverged, loss,
            (SELECT coalesce(json_group_array(
                json_array(step, json(number_text(loss)), json(number_text(w_q)))), '[]')
             FROM (SELECT * FROM old.curves AS c WHERE c.key = doses.key ORDER BY step)),
            json_object('shares', json(coalesce({{shares}}, '[]'))), {_ABOUT}
        FROM old.doses"""
    ),
    b"RSqy": (
        f"""
        SELECT key, json_object('changes', changes, 'tiles', tiles), seed, steps, diverged,
            loss, curve, json_object('norm', json(number_text(norm)), 'heads', json(heads),
                'rest', json(rest)), {_ABOUT}
        FROM old.trials"""
    ),
    b"RSm8": (
        f"""
        SELECT key, json_object('name', name, 'changes', changes, 'lr', lr), seed,
            json_extract(config, '$.steps'), diverged, loss, curve,
            json_object('audit', (SELECT json_group_array(json_object('step', step, 'layer', layer,
                'matrix', matrix, 'operand', operand, 'element', element, 'rule', rule,
                {_AUDIT}))
                FROM (SELECT * FROM old.audit AS a WHERE a.key = trials.key ORDER BY rowid))),
            {_ABOUT}
        FROM old.trials"""
    ),
    b"RSpx": (
        f"""
        SELECT key, json_object('name', name, 'changes', json(changes), 'lr', lr), seed, steps,
            diverged, loss, curve,
            json_object('spikes', spikes, 'measures', json(measures)), {_ABOUT}
        FROM old.runs"""
    ),
}
_BY_ID = {int.from_bytes(name, "big"): text for name, text in KINDS.items()}


def read_in(connection: sqlite3.Connection, folder: Path) -> None:
    """Add to `runs` what old files of the folder hold and `runs` does not."""
    for path in sorted(folder.glob("*.sqlite")):
        if text := _BY_ID.get(_application(path)):
            connection.create_function("number_text", 1, _text, deterministic=True)
            connection.execute("ATTACH ? AS old", (str(path),))
            has_shares = any(
                row[1] == "shares" for row in connection.execute("PRAGMA old.table_info(doses)")
            )
            rows = text.format(shares="shares" if has_shares else "NULL")
            connection.execute(f"INSERT OR IGNORE INTO main.runs ({RUNS}) {rows}")
            connection.commit()
            connection.execute("DETACH old")


def _text(x: float | None) -> str:
    """Return a number as JSON with all of its bits; SQLite's own text has 15 digits."""
    return "null" if x is None else repr(x)


def _application(path: Path) -> int:
    """Return a file's application_id, 0 where it is no SQLite file."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        head = file.read(72)
    return int.from_bytes(head[68:72], "big") if head.startswith(b"SQLite format 3") else 0
