"""The runs of the student in the results file of a folder, which is only read."""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundscope.emu.plain_data import COUNT, misfit
from roundscope.experiments.framework.store import APPLICATION
from roundscope.experiments.train.student.arms import Arm
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.plan import plan_of
from roundscope.tools.errors import StorageError, bad, one_line
from roundscope.tools.results.tables import RESTORE, check_start, explained, json_of

# the results files of `reproduce su`, `reproduce mxfp8` and `proxy`
FILES = ("su.sqlite", "mxfp8.sqlite", "proxy.sqlite")
OLDER = int.from_bytes(b"RSpx", "big")  # SQLite's application_id of files of older versions
COLUMNS = "seed, diverged, curve, config, device"
CONDITION = {"name": str, "changes": [[(int, str)]], "lr": float}  # of the JSON
QUERIES = {  # a run's condition comes first, for older versions in three columns
    APPLICATION: f"SELECT condition, {COLUMNS} FROM runs ORDER BY rowid",
    OLDER: f"SELECT name, changes, lr, {COLUMNS} FROM runs ORDER BY rowid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run of the file.

    arm, config   its arm and config;  diverged: the step at which it did, or None
    curve         (steps done, largest loss, norm);  device: where it ran
    """

    arm: Arm
    config: Config
    diverged: int | None
    curve: tuple[tuple[int, float, float], ...]
    device: str


def file_of(folder: Path) -> Path | None:
    """Return the results file of a folder in which students were trained, or None without one."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def read(folder: Path) -> list[Row]:
    """Return the runs of the student in a folder, in the order in which they were kept.

    Raises UsageError for another program's file, StorageError for damage.
    """
    path = (file_of(folder) or folder / FILES[-1]).resolve()
    check_start(path, "RUN_OR_TENSORS")
    address = f"{path.as_uri()}?mode=ro"
    with explained(path), closing(sqlite3.connect(address, uri=True, timeout=30.0)) as connection:
        [(application,)] = connection.execute("PRAGMA application_id")
        if application not in QUERIES:
            repair = f"its {path.name} is of another program; give a folder of `roundscope proxy`"
            raise bad("RUN_OR_TENSORS", str(folder), repair)
        found = connection.execute(QUERIES[application]).fetchall()
    try:
        rows = [
            _row(path, *values) if application == APPLICATION else _older(path, *values)
            for values in found
        ]
    except StorageError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path}: a run cannot be read ({one_line(error)}); it is damaged or of another "
            "version: run the study again into another folder"
        ) from None
    return [row for row in rows if row is not None]


def _older(path: Path, name: Any, changes: Any, lr: Any, *rest: Any) -> Row | None:
    pairs = json_of(path, "changes", changes, CONDITION["changes"])
    return _row(path, json.dumps({"name": name, "changes": pairs, "lr": lr}, default=str), *rest)


def _row(
    path: Path, condition: Any, seed: Any, diverged: Any, curve: Any, config: Any, device: Any
) -> Row | None:
    """Return the run of a row; None for a GPT's, of `reproduce mxfp8`."""
    fields = json_of(path, "config", config, dict)
    if "depth" not in fields:
        return None
    wanted = json_of(path, "condition", condition, CONDITION)
    numbers = {"seed": seed, "diverged": diverged}
    if amiss := misfit(numbers, {"seed": COUNT, "diverged": (None, COUNT)}):
        raise StorageError(f"{path}: a run is not what roundscope writes: {amiss}; {RESTORE} file")
    changes = tuple((int(step), str(text)) for step, text in wanted["changes"])
    arm = Arm(name=wanted["name"], changes=changes, lr=float(wanted["lr"]), seed=int(seed))
    model = Config(**fields)
    if diverged is not None and diverged >= model.steps:
        amiss = f"it diverged at step {diverged} of {model.steps}"
        raise StorageError(f"{path}: a run is not what roundscope writes: {amiss}; {RESTORE} file")
    for step in arm.firsts:
        plan_of(model, arm.texts(step))
    points = tuple(
        (int(step), _number(loss), _number(norm))
        for step, loss, norm in json_of(path, "curve", curve, [[(float, None)]])
    )
    return Row(arm=arm, config=model, diverged=diverged, curve=points, device=str(device))


def _number(x: float | None) -> float:
    return math.nan if x is None else float(x)
