"""The run of a proxy to diagnose: the arm that diverged, its FP32 twin, and where replays begin."""

import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundscope.emu.errors import unknown
from roundscope.emu.plain_data import COUNT, misfit
from roundscope.experiments.diagnose.gpt.case import LONGEST, MARGIN
from roundscope.experiments.framework.store import APPLICATION
from roundscope.experiments.train.student.arms import EXACT, Arm, Config, Plan, key, plan_of
from roundscope.experiments.train.student.run import Begin, begin, fresh, prefix
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.errors import StorageError, UsageError, bad, one_line
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
    """Return the runs of the student in a folder, in order. Raises UsageError, StorageError."""
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
        why = f"a run cannot be read ({one_line(error)}); it is damaged or of another version"
        raise StorageError(f"{path}: {why}: run the study again into another folder") from None
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
    numbers, model = {"seed": seed, "diverged": diverged}, Config(**fields)
    amiss = misfit(numbers, {"seed": COUNT, "diverged": (None, COUNT)})
    if not amiss and diverged is not None and diverged >= model.steps:
        amiss = f"it diverged at step {diverged} of {model.steps}"
    if amiss:
        raise StorageError(f"{path}: a run is not what roundscope writes: {amiss}; {RESTORE} file")
    changes = tuple((int(step), str(text)) for step, text in wanted["changes"])
    arm = Arm(name=wanted["name"], changes=changes, lr=float(wanted["lr"]), seed=int(seed))
    for step in arm.firsts:
        plan_of(model, arm.texts(step))
    points = tuple(
        (int(step), _number(loss), _number(norm))
        for step, loss, norm in json_of(path, "curve", curve, [[(float, None)]])
    )
    return Row(arm=arm, config=model, diverged=diverged, curve=points, device=str(device))


def _number(x: float | None) -> float:
    return math.nan if x is None else float(x)


# steps before the divergence at which replays may begin, besides the earliest state
AHEAD = (100, 200, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One diverged run and where to replay it.

    row      the run;  twin: FP32 of the same rows and rate, None if it was not run
    origin   the earliest step that has a state: 0, or that at which the arms of a study of
             interventions separate
    starts   steps from which replays may begin, the latest first
    until    their last step, exclusive;  longest: that of the longest
    """

    folder: Path
    row: Row
    twin: Row | None
    origin: int
    starts: tuple[int, ...]
    until: int
    longest: int

    @property
    def config(self) -> Config:
        """The config without measurements during the run."""
        return replace(self.row.config, measure_every=0)

    @property
    def own(self) -> Arm:
        """The arm that is diagnosed."""
        return self.row.arm

    @property
    def failed(self) -> int:
        """The step at which it diverged."""
        assert self.row.diverged is not None
        return self.row.diverged

    def plan(self, step: int) -> Plan:
        """Return what rounds where at a step."""
        return plan_of(self.config, self.own.texts(step))

    def beginning(self) -> Begin:
        """Return the state of step `origin`, with an axis of one arm."""
        if self.origin:
            wanted, column = _kept(self.folder, self.row)[self.origin]
            found = begin(self.row.config, wanted, self.origin, self.folder, lambda n: None)
            return found.take([column])
        return fresh(self.config, [self.own])


def case(folder: Path, options: DiagnoseOptions) -> Case:
    """Return what to diagnose: the earliest divergence.

    Runs whose FP32 twin did not diverge are preferred. Raises UsageError for a folder without a
    diverged run, a name or steps that it lacks; StorageError for a damaged file.
    """
    arm, first, until = options.arm, options.first, options.until
    rows = read(folder)
    names = list(dict.fromkeys(row.arm.name for row in rows))
    if arm is not None and arm not in names:
        raise UsageError(f"--arm: {unknown('arm', arm, names)}")
    bad_ones = [
        r
        for r in rows
        if r.diverged is not None and (r.arm.name == arm if arm else r.arm.name != EXACT)
    ]
    if not bad_ones:
        count = sum(r.arm.name == arm or not arm for r in rows)
        whose = f"arm {arm}" if arm else "arms that round"
        why = f"none of {count} runs of {whose} diverged: there is nothing to diagnose"
        repair = f"{why}; choose another arm, or a study that diverges"
        raise bad("RUN_OR_TENSORS", str(folder), repair)

    def order(row: Row) -> tuple[bool, int | None]:
        twin = _twin(row, rows)
        return twin is not None and twin.diverged is not None, row.diverged

    chosen = min(bad_ones, key=order)
    failed, steps = chosen.diverged, chosen.config.steps
    assert failed is not None
    origin = 0
    if first != 0:
        latest = failed - 1 if first is None else first
        origin = max((step for step in _kept(folder, chosen) if step <= latest), default=0)
    end = min(steps, failed + 1 + MARGIN) if until is None else until
    diverges = f"the run diverges at step {failed}"
    if first is not None and not 0 <= first < failed:
        raise bad("--from", first, f"{diverges}; give a step before it")
    if not failed < end <= steps:
        raise bad("--until", end, f"{diverges} and ends at {steps}; give a step between them")
    longest = end
    if until is None:
        longest = min(steps, max(end, failed + LONGEST * MARGIN))
    ahead = {max(failed - back, origin) for back in AHEAD} | {origin}
    starts = tuple(sorted(ahead, reverse=True)) if first is None else (first,)
    return Case(
        folder=folder,
        row=chosen,
        twin=_twin(chosen, rows),
        origin=origin,
        starts=starts,
        until=end,
        longest=longest,
    )


def _twin(row: Row, rows: Sequence[Row]) -> Row | None:
    def alike(r: Row) -> tuple[Config, float, int]:
        return (replace(r.config, measure_every=0), r.arm.lr, r.arm.seed)

    return next((r for r in rows if r.arm.name == EXACT and alike(r) == alike(row)), None)


def _kept(folder: Path, row: Row) -> dict[int, tuple[list[Arm], int]]:
    """Return step -> the arms whose states the folder keeps there, and the place of this run's."""
    found = {}
    for path in sorted(folder.glob("begin-*-*-*.safetensors")):
        _, step, name, *seeds = path.stem.split("-")
        own = prefix(row.arm, int(step))
        wanted = [replace(own, seed=int(seed)) for seed in seeds]
        if own in wanted and key(row.config, wanted[0]).startswith(name):
            found[int(step)] = wanted, wanted.index(own)
    return found
