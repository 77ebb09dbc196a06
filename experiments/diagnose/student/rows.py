"""The runs in DIR/proxy.sqlite, read without touching it."""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import StorageError, bad, one_line
from roundscope.experiments.studies.proxy.store import APPLICATION, NAME
from roundscope.experiments.sweep.storage.schema import explained
from roundscope.experiments.train.student.arms import Arm
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.plan import plan_of

NAMES = ("name", "changes", "lr", "seed", "diverged", "curve", "config", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run of the file: its arm, its config, the step at which it diverged or None, its curve (steps done, largest loss, norm)."""

    arm: Arm
    config: Config
    diverged: int | None
    curve: tuple[tuple[int, float, float], ...]
    device: str


def read(folder: Path) -> list[Row]:
    """The runs of a folder, in the order in which they were kept. Raises UsageError for another program's file, StorageError for damage."""
    path = (folder / NAME).resolve()
    with explained(path), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30.0)) as connection:
        [(application,)] = connection.execute("PRAGMA application_id")
        if application != APPLICATION:
            raise bad("RUN_OR_TENSORS", str(folder), f"its {NAME} is of another program; give a folder of `roundscope proxy`")
        found = connection.execute(f"SELECT {', '.join(NAMES)} FROM runs ORDER BY rowid").fetchall()
    try:
        return [_row(dict(zip(NAMES, values, strict=True))) for values in found]
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{path}: a run cannot be read ({one_line(error)}); it is damaged or of another version: run the study "
                           "again into another folder") from None  # fmt: skip


def _row(found: dict[str, Any]) -> Row:
    number = lambda x: math.nan if x is None else float(x)  # noqa: E731
    changes = tuple((int(step), str(text)) for step, text in json.loads(found["changes"]))
    arm = Arm(name=found["name"], changes=changes, lr=float(found["lr"]), seed=int(found["seed"]))
    config = Config(**json.loads(found["config"]))
    for step in arm.firsts:
        plan_of(config, arm.texts(step))
    curve = tuple((int(step), number(loss), number(norm)) for step, loss, norm in json.loads(found["curve"]))
    return Row(arm=arm, config=config, diverged=found["diverged"], curve=curve, device=str(found["device"]))
