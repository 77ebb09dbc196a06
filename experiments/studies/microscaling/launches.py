"""Which launches a scale needs, in their order, and how each runs: trainings, epsilon, interventions, the published setting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundscope.experiments.studies.microscaling.arms import (
    base_arm,
    changed,
    changes_of,
    config_of,
    parted,
    trained,
)
from roundscope.experiments.studies.microscaling.scale import Scale, Setting
from roundscope.experiments.train.student.arms import EXACT, Arm, groups
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Arms of one executable. first: the step at which they leave a run that they share, None if they share none."""

    config: Config
    arms: tuple[Arm, ...]
    first: int | None = None


def base(scale: Scale) -> list[Launch]:
    """The base in all formats: what interventions need. The runs that these part from are launched one by one, as beginnings are: other
    arms beside them are another executable, whose last bits move the divergence by tens of steps.
    """
    config, arms = config_of(scale.base), trained(scale.base, scale.formats, scale.seeds)
    alone = [arm for arm in arms if (arm.name, arm.lr) == (scale.mx, scale.rate)]
    others = [arm for arm in arms if arm not in alone]
    return [*_split(config, others, scale.arms), *(Launch(config=config, arms=(arm,)) for arm in alone)]


def others(scale: Scale) -> list[Launch]:
    """Epsilon of the base, the other settings, the published one."""
    added = trained(at_rate(scale), changed(scale.mx), scale.seeds[: scale.parted])
    found = [epsilon(scale), *_split(config_of(scale.base), added, scale.arms)]
    found += [each for setting in scale.settings[1:] for each in _trained(scale, setting, scale.few)]
    if scale.paper is not None:
        config, formats, seeds = scale.paper
        found += _split(config, trained(Setting(name="paper", config=config, rates=(config.lr,)), formats, seeds), 1)
    return found


def at_rate(scale: Scale) -> Setting:
    """The base at the rate of the interventions alone."""
    return replace(scale.base, rates=(scale.rate,))


def epsilon(scale: Scale) -> Launch:
    """The base in format mx, and FP32 beside it."""
    seeds = scale.seeds[: scale.parted]
    arms = [base_arm(scale, seed) for seed in seeds]
    exact = [Arm(name=EXACT, lr=scale.rate, seed=seed) for seed in seeds]
    return Launch(config=replace(config_of(scale.base, scale.rate), measure_every=scale.looks), arms=(*arms, *exact))


def _trained(scale: Scale, setting: Setting, formats: Sequence[str]) -> list[Launch]:
    return _split(config_of(setting), trained(setting, formats, scale.seeds), scale.arms)


def _split(config: Config, arms: Sequence[Arm], most: int, first: int | None = None) -> list[Launch]:
    """By executable, in equal parts of at most so many arms."""
    found = []
    for group in groups(config, arms):
        size = math.ceil(len(group) / math.ceil(len(group) / most))
        found += [Launch(config=config, arms=tuple(group[i : i + size]), first=first) for i in range(0, len(group), size)]
    return found


def leaving(scale: Scale, own: Sequence[Result], exact: Sequence[Result]) -> list[tuple[int, int, int]]:
    """(seed, lead, step at which arms part) of the first seeds whose base run diverges, long enough after its start, where FP32 lives."""
    alive = {r.arm.seed for r in exact if r.diverged is None}
    fit = [r for r in own if r.diverged is not None and r.diverged > max(scale.leads) and r.arm.seed in alive]
    return [(r.arm.seed, lead, r.diverged - lead) for lead in scale.leads for r in fit[: scale.parted] if r.diverged is not None]


def interventions(scale: Scale, places: Sequence[tuple[int, int, int]]) -> list[Launch]:
    """The arms that part from the base run of a seed at a step."""
    config = config_of(scale.base, scale.rate)
    return [each for seed, _, first in places for each in _split(config, parted(scale, seed, first), scale.arms, first)]


def ran(scale: Scale, launch: Launch, out: Path, progress: Any) -> list[Result]:
    """The results of a launch; states at which arms part are kept in `out`."""
    from roundscope.experiments.studies.microscaling.epsilon import pair_up
    from roundscope.experiments.train.student.begins import begin
    from roundscope.experiments.train.student.run import launch as whole

    if launch.config.measure_every:
        half = len(launch.arms) // 2
        return pair_up(launch.config, launch.arms[:half], launch.arms[half:], changes_of(f"{scale.mx}:rceil"), progress)
    start = None if launch.first is None else begin(launch.config, launch.arms, launch.first, out, progress)
    return whole(launch.config, launch.arms, progress, start)
