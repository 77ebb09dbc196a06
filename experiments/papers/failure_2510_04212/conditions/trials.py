"""`Trial`: one training; which trials the rows of the table need, and which share an executable."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.papers.failure_2510_04212.conditions.cases import Case
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import Row, rows
from roundscope.experiments.papers.failure_2510_04212.conditions.scale import Scale
from roundscope.experiments.train.config import Config, unusual
from roundscope.experiments.train.gpt.interventions import described, plans_of
from roundscope.experiments.train.groups import numbers
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.results.run import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training.

    changes  changes of the preset qiu-yao, in the trainer's words
    tiles    the number of parts of the context
    seed     the seed of weights and batches
    times    `Case.times`
    """

    changes: tuple[str, ...]
    tiles: int
    steps: int
    seed: int
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A trial in its place: the names of its case and row.

    Several entries may share a trial, or have trials that are the same arithmetic.
    """

    case: str
    row: str
    trial: Trial


def chosen_rows(scale: Scale, case: Case) -> list[Row]:
    """Return the rows of a case that a scale runs."""
    return [row for row in rows(case, scale.config) if row.core or not scale.core]


def entries(scale: Scale) -> list[Entry]:
    """Return all entries that are run whatever the results are."""
    return [
        entry
        for case in scale.cases
        for row in chosen_rows(scale, case)
        for entry in of_row(scale, case, row)
    ]


def of_row(scale: Scale, case: Case, row: Row, seeds: Iterable[int] | None = None) -> list[Entry]:
    """Return the entries of a row, one for each seed."""
    steps, usual = (scale.short, scale.few) if row.search else (scale.steps, scale.seeds)
    changes = (*case.changes, *row.changes)
    return [
        Entry(
            case=case.name,
            row=row.name,
            trial=Trial(changes=changes, tiles=row.tiles, steps=steps, seed=seed, times=case.times),
        )
        for seed in (usual if seeds is None else seeds)
    ]


def config_of(scale: Scale, trial: Trial) -> Config:
    """Return the config of a trial's executable."""
    c = scale.config
    return replace(
        c,
        block=c.context // trial.tiles,
        steps=max(trial.steps, c.warmup),
        lr=1.0,
        min_lr=1.0,
        decay_steps=None,
    )


def rate_of(scale: Scale, trial: Trial) -> float:
    """Return the learning rate after the warm-up."""
    return scale.rate * trial.times


def key(scale: Scale, trial: Trial) -> str:
    """Return the key of a run: of all that decides it but versions and device.

    Two ways to write one plan have one key.
    """
    config = {
        name: value
        for name, value in unusual(scale.config).items()
        if name not in (*NAMED, "block")
    }
    plans = _plans(config_of(scale, trial), trial.changes)
    return key_of(config, plans, rate_of(scale, trial), trial.tiles, trial.steps, trial.seed)


@lru_cache(4096)
def _plans(config: Config, changes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the plans of a trial, whatever its seed, as plain data without names."""
    plans = described(plans_of(config, changes))
    for each in plans:
        each["plan"].pop("name")
    return plans


def settings_of(scale: Scale, trials: Sequence[Trial]) -> Settings:
    """Return trials of equally many steps and tiles as arms of one run."""
    arms = [
        Arm(name=str(i), changes=t.changes, lr=rate_of(scale, t), seed=t.seed)
        for i, t in enumerate(trials)
    ]
    return Settings(config=config_of(scale, trials[0]), arms=tuple(arms))


def launches(scale: Scale, trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return trials by executable: the same steps, tiles and structure of plans.

    Long lists are cut into equal parts, the last of which is filled up with its first trials, so
    that all parts share a compilation.
    """
    alike: dict[tuple[int, int], list[Trial]] = {}
    for trial in {key(scale, t): t for t in trials}.values():
        alike.setdefault((trial.steps, trial.tiles), []).append(trial)
    groups = [group for own in alike.values() for group in _executables(scale, tuple(own))]
    return [part for group in groups for part in _parts(group, scale.arms)]


@lru_cache(64)
def _executables(scale: Scale, trials: tuple[Trial, ...]) -> list[list[Trial]]:
    """Return trials of equally many steps and tiles by the structure of their plans.

    The changes alone decide that structure.
    """
    firsts = list({t.changes: t for t in trials}.values())
    groups = []
    for arms in numbers(settings_of(scale, firsts)):
        alike = {firsts[i].changes for i in arms}
        groups.append([t for t in trials if t.changes in alike])
    return groups


def _parts(group: Sequence[Trial], most: int) -> list[list[Trial]]:
    size = math.ceil(len(group) / math.ceil(len(group) / most))
    parts = [list(group[i : i + size]) for i in range(0, len(group), size)]
    return [part + part[:1] * (size - len(part)) for part in parts]
