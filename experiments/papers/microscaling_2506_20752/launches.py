"""Which launches a scale needs, in their order, and how each runs.

They are trainings, epsilon, interventions and the published setting.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from roundscope.experiments.framework import student
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.papers.microscaling_2506_20752.conditions import (
    Scale,
    Setting,
    base_arm,
    changed,
    changes_of,
    config_of,
    parted,
    trained,
)
from roundscope.experiments.train.student.arms import EXACT, Arm, groups
from roundscope.experiments.train.student.config import Config
from roundscope.tools.results.run import Run

Runs = Sequence[Run[Arm]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Arms of one executable.

    first   the step at which they leave a run that they share; None if they share none
    """

    config: Config
    arms: tuple[Arm, ...]
    first: int | None = None


def planned(scale: Scale, store: Store) -> list[Launch]:
    """Return all launches in their order.

    The base comes first, since it says where interventions leave it.
    """
    folder = store.path.parent
    first = [_launch(scale, part, folder) for part in base(scale)]
    if not store.keys().issuperset(key for launch in first for key in launch.keys):
        return first
    later = [*interventions(scale, starts(scale, store)), *others(scale)]
    return [*first, *(_launch(scale, part, folder) for part in later)]


def base(scale: Scale) -> list[Part]:
    """Return the base in all formats, which interventions need.

    The runs that these leave are launched one by one, as beginnings are: other arms beside them
    would be another executable, whose last bits move the divergence by tens of steps.
    """
    config, arms = config_of(scale.base), trained(scale.base, scale.formats, scale.seeds)
    alone = [arm for arm in arms if (arm.name, arm.lr) == (scale.mx, scale.rate)]
    beside = [arm for arm in arms if arm not in alone]
    return [*_split(config, beside, scale.arms), *(Part(config=config, arms=(a,)) for a in alone)]


def others(scale: Scale) -> list[Part]:
    """Return epsilon of the base, the other settings, and the published one."""
    added = trained(at_rate(scale), changed(scale.mx), scale.seeds[: scale.parted])
    found = [epsilon(scale), *_split(config_of(scale.base), added, scale.arms)]
    for setting in scale.settings[1:]:
        found += _split(config_of(setting), trained(setting, scale.few, scale.seeds), scale.arms)
    if scale.paper is not None:
        published, formats, seeds = scale.paper
        found += _split(config_of(published), trained(published, formats, seeds), 1)
    return found


def at_rate(scale: Scale) -> Setting:
    """Return the base at the rate of the interventions alone."""
    return replace(scale.base, rates=(scale.rate,))


def epsilon(scale: Scale) -> Part:
    """Return the base in format mx, and FP32 beside it."""
    seeds = scale.seeds[: scale.parted]
    arms = [base_arm(scale, seed) for seed in seeds]
    exact = [Arm(name=EXACT, lr=scale.rate, seed=seed) for seed in seeds]
    config = replace(config_of(scale.base, scale.rate), measure_every=scale.looks)
    return Part(config=config, arms=(*arms, *exact))


def _split(config: Config, arms: Sequence[Arm], most: int, first: int | None = None) -> list[Part]:
    """Return arms by executable, in equal parts of at most so many arms."""
    found = []
    for group in groups(config, arms):
        size = math.ceil(len(group) / math.ceil(len(group) / most))
        own = [tuple(group[i : i + size]) for i in range(0, len(group), size)]
        found += [Part(config=config, arms=each, first=first) for each in own]
    return found


def starts(scale: Scale, store: Store) -> list[tuple[int, int, int]]:
    """Return where interventions leave the base, as `leaving` does.

    It is empty before the base and FP32 are stored.
    """
    setting = config_of(scale.base)
    arms = [trained(scale.base, [f], scale.seeds) for f in (scale.mx, EXACT)]
    own, exact = (student.whole(store, setting, each) for each in arms)
    return leaving(scale, _at(own, scale.rate), _at(exact, scale.rate))


def _at(runs: Iterable[Run[Arm]], rate: float) -> list[Run[Arm]]:
    return [r for r in runs if r.condition.lr == rate]


def leaving(scale: Scale, own: Runs, exact: Runs) -> list[tuple[int, int, int]]:
    """Return (seed, lead, step at which arms leave) of the first seeds that are fit.

    Their base run diverges, long enough after its start, and their FP32 run does not.
    """
    alive = {r.seed for r in exact if r.diverged is None}
    steps = {r.seed: r.diverged for r in own if r.diverged is not None and r.seed in alive}
    fit = [seed for seed, step in steps.items() if step > max(scale.leads)][: scale.parted]
    return [(seed, lead, steps[seed] - lead) for lead in scale.leads for seed in fit]


def interventions(scale: Scale, places: Sequence[tuple[int, int, int]]) -> list[Part]:
    """Return the arms that leave the base run of a seed at a step."""
    config = config_of(scale.base, scale.rate)
    each = [(first, parted(scale, seed, first)) for seed, _, first in places]
    return [part for first, arms in each for part in _split(config, arms, scale.arms, first)]


def _launch(scale: Scale, part: Part, folder: Path) -> Launch:
    title = "student" if part.first is None else f"student, from step {part.first}"

    def compute(progress: Progress) -> list[Run[Arm]]:
        return ran(scale, part, folder, progress)

    return student.launch(title, part.config, part.arms, compute)


def ran(scale: Scale, part: Part, folder: Path, progress: Progress) -> list[Run[Arm]]:
    """Return the runs of a launch; states at which arms part are kept in the folder."""
    from roundscope.experiments.papers.microscaling_2506_20752.epsilon import pair_up
    from roundscope.experiments.train.student.run import begin, launch

    config, arms = part.config, part.arms
    if config.measure_every:
        half = len(arms) // 2
        return pair_up(config, arms[:half], arms[half:], changes_of(f"{scale.mx}:rceil"), progress)
    start = None if part.first is None else begin(config, arms, part.first, folder, progress)
    return launch(config, arms, progress, start)
