"""The data of a run's report: its log, arm by arm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.experiments.train import checkpoint, record
from roundscope.experiments.train.config import NEWER
from roundscope.experiments.train.settings import TYPES
from roundscope.tools.errors import StorageError, bad
from roundscope.tools.results.tables import RESTORE, json_of

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
    path = folder / record.NAME
    about, steps = record.last_start(folder), record.rows(folder, "steps")
    if not steps:
        raise bad(
            "RUN",
            str(folder),
            "has no step in its log yet; wait for the first monitor or checkpoint",
        )
    heads, alarms = record.rows(folder, "heads"), record.rows(folder, "alarms")
    changes = {
        arm["name"]: tuple(arm["changes"])
        for arm in (checkpoint.about(folder) or {"arms": []})["arms"]
    }
    arms = [
        _arm(
            path,
            arm,
            changes.get(arm["name"]),
            *(
                [row for row in rows if row["arm"] == arm["name"]]
                for rows in (steps, heads, alarms)
            ),
        )
        for arm in json_of(path, "arms of a start", about["arms"], ARMS)["arms"]
    ]
    arms = [arm for arm in arms if arm.step.size]
    if not arms:
        raise StorageError(f"{path}: its steps are of other arms than its runs; {RESTORE} file")
    return Training(
        folder=folder,
        config=json_of(path, "config of a start", about["config"], CONFIG),
        about=about,
        arms=tuple(arms),
    )


def _arm(
    path: Path,
    arm: dict[str, Any],
    changes: tuple[str, ...] | None,
    steps: list[Any],
    heads: list[Any],
    alarms: list[Any],
) -> Arm:
    looks, drift, w_q = _looks(path, heads)
    return Arm(
        name=arm["name"],
        group=arm["name"].removesuffix(f"/{arm['seed']}"),
        changes=changes,
        lr=arm["lr"],
        step=np.array([row["step"] for row in steps], int),
        loss=_numbers(steps, "loss"),
        norm=_numbers(steps, "gradient_norm"),
        looks=looks,
        drift=drift,
        w_q=w_q,
        alarms=alarms,
    )


def _numbers(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([math.nan if row.get(name) is None else row[name] for row in rows], float)


def _looks(path: Path, rows: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (steps, drift, ||W_Q||) of rows of `heads` in the order of their key.

    Raises StorageError where a look lacks a head.
    """
    looks = np.array(sorted({row["step"] for row in rows}), int)
    layers, heads = (1 + max((row[name] for row in rows), default=-1) for name in ("layer", "head"))
    shape = looks.size, layers, heads
    if min(layers, heads) < 0 or math.prod(shape) != len(rows):
        raise StorageError(f"{path}: a look in its table heads lacks a head; {RESTORE} file")
    drift, norm = (_numbers(rows, name).reshape(shape) for name in ("drift", "w_q_norm"))
    return looks, drift, norm
