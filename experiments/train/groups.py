"""Arms that run in one executable: same structure of plans for the whole run, states stacked, plans
from each step on.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from roundscope.attention import Plan
from roundscope.attention.plans.traced import HeadPlans, structure
from roundscope.experiments.train import devices
from roundscope.experiments.train.config import PALLAS, WORD, Config
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.engines import check_engine, fused_plan
from roundscope.experiments.train.gpt.injected import check, readable, wrongs_of
from roundscope.experiments.train.gpt.interventions import Plans, plans_of
from roundscope.experiments.train.gpt.linear_plans import LinearPlans, formats_of, how_of, linear_at
from roundscope.experiments.train.gpt.linear_plans import by_arm as linears_by_arm
from roundscope.experiments.train.gpt.offset import Offset, Wrongs, offsets
from roundscope.experiments.train.gpt.plans import by_arm, by_layer
from roundscope.experiments.train.mx.formats import Formats
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.experiments.train.state import pick


class Group:
    """Arms of one executable: their numbers, their state on the devices, their peak rates."""

    def __init__(self, settings: Settings, arms: list[int], state: Any) -> None:
        self.settings, self.arms = settings, arms
        self.place = devices.place(settings.config, arms)
        self.state = self.place.state(state)
        self.lr = self.place.state(np.array([settings.arms[a].lr for a in arms], np.float32))
        self.seeds = [settings.arms[a].seed for a in arms]
        self._executables: dict[int, tuple[one_step.Step, Plan | None]] = {}
        self._plans: dict[int, tuple[HeadPlans | None, list[Plans | None]]] = {}
        self._offsets: dict[int, Offset | None] = {}
        self._linears: dict[int, LinearPlans | None] = {}

    def advance(self, number: int, batches: dict[int, np.ndarray]) -> tuple[Any, Any]:
        """Step `number` with the batch of each seed.

        Losses and gradient norms (arms,), on the device.
        """
        tokens, (advance, fused) = self.place.tokens(self.own(batches)), self._executable(number)
        plans = None if fused else self.plans(number)[0]
        self.state, losses, norms = advance(
            self.state, tokens, plans, self.lr, self.offset(number), self.linears(number)
        )
        return losses, norms

    def fused(self, number: int) -> Plan | None:
        """The plan of a step's fused kernels, that of all arms here; None for a run without."""
        return self._executable(number)[1]

    def _executable(self, number: int) -> tuple[one_step.Step, Plan | None]:
        """Of a step, and the plan that is part of it."""
        stage = self._stage(number)
        if stage not in self._executables:
            config, arm = self.settings.config, self.settings.arms[self.arms[0]]
            own = _fused(config, self.plans(number)[1][0], wrongs_at(self.settings, arm, number))
            self._executables[stage] = one_step.advance(config, own), own
        return self._executables[stage]

    def _stage(self, number: int) -> int:
        """How many of the changes of all arms hold at a step."""
        return sum(first <= number for first, _ in self.settings.at)

    def own(self, batches: dict[int, np.ndarray]) -> np.ndarray:
        """The group's tokens: (B, T + 1) if its arms share a seed, else (A, B, T + 1)."""
        return (
            batches[self.seeds[0]]
            if len(set(self.seeds)) == 1
            else np.stack([batches[seed] for seed in self.seeds])
        )

    def plans(self, number: int) -> tuple[HeadPlans | None, list[Plans | None]]:
        """The plans of a step, as data on the devices and as plans."""
        stage = self._stage(number)
        if stage not in self._plans:
            plans = [plans_at(self.settings, self.settings.arms[a], number) for a in self.arms]
            tables = by_arm([None if p is None else by_layer(p) for p in plans])
            self._plans[stage] = None if tables is None else self.place.state(tables), plans
        return self._plans[stage]

    def offset(self, number: int) -> Offset | None:
        """What delta reads wrongly at a step, as data on the devices; None without any, and for
        plans whose delta reads no output.
        """
        stage = self._stage(number)
        if stage not in self._offsets:
            made = self._offset(number)
            self._offsets[stage] = None if made is None else self.place.state(made)
        tables = self.plans(number)[0]
        return self._offsets[stage] if tables is not None and readable(tables.like) else None

    def linears(self, number: int) -> LinearPlans | None:
        """What the linear layers round at a step, as data on the devices; None without any change
        of them so far.
        """
        stage = self._stage(number)
        if stage not in self._linears:
            made = self._linear(number)
            self._linears[stage] = None if made is None else self.place.state(made)
        return self._linears[stage]

    def _linear(self, number: int) -> LinearPlans | None:
        """One executable from the first change on: it serves the formats of all arms at all
        steps.
        """
        arms = [self.settings.arms[a] for a in self.arms]
        found = [
            formats
            for arm in arms
            if (formats := formats_at(self.settings, arm, number)) is not None
        ]
        if 0 < len(found) < len(arms):
            raise ValueError(
                "arms: some have changes of linear layers and others have none; run them separately"
            )
        if not found:
            return None
        ever = (
            formats_at(self.settings, arm, first) for arm in arms for first in firsts(self.settings)
        )
        return linears_by_arm(
            how_of([f for f in ever if f is not None]),
            found,
            [_seed(self.settings, arm) for arm in arms],
        )

    def _offset(self, number: int) -> Offset | None:
        arms = [self.settings.arms[a] for a in self.arms]
        found = [
            wrongs for arm in arms if (wrongs := wrongs_at(self.settings, arm, number)) is not None
        ]
        if 0 < len(found) < len(arms):
            raise ValueError("arms: some have an offset and others have none; run them separately")
        return offsets(found, [_seed(self.settings, arm) for arm in arms]) if found else None


def groups(settings: Settings, state: Any) -> list[Group]:
    """The groups of all arms, from a state of all arms in their order."""
    return [Group(settings, arms, pick(state, arms)) for arms in numbers(settings)]


def numbers(settings: Settings) -> list[list[int]]:
    """Numbers of the arms that share a structure at every step.

    Raises UsageError for changes and engines that cannot be had.
    """
    check_engine(settings.config)
    found: dict[tuple[Hashable, ...], list[int]] = {}
    for number, arm in enumerate(settings.arms):
        found.setdefault(
            tuple(_structure(settings, arm, first) for first in firsts(settings)), []
        ).append(number)
    return list(found.values())


def firsts(settings: Settings) -> list[int]:
    """The steps from which something changes, 0 among them, ascending."""
    return sorted({0, *(first for first, _ in settings.at)})


def _structure(settings: Settings, arm: Arm, step: int) -> Hashable:
    """What makes an executable: that of the plans, whether delta reads anything wrongly, which
    events of linear layers draw lots.
    """
    plans = plans_at(settings, arm, step)
    wrongs = wrongs_at(settings, arm, step)
    formats = formats_at(settings, arm, step)
    check(plans, wrongs, (*settings.config.changes, *_texts(settings, arm, step)))
    own = None if plans is None else structure(plans[0][0])
    return (
        _fused(settings.config, plans, wrongs) or own,
        wrongs is not None,
        formats and (formats.drawn, formats.even),
    )


def _fused(config: Config, plans: Plans | None, wrongs: Wrongs | None) -> Plan | None:
    """The one of these plans that an arm's fused kernels have; None for a run without."""
    return None if config.engine != PALLAS or plans is None else fused_plan(config, plans, wrongs)


def plans_at(settings: Settings, arm: Arm, step: int) -> Plans | None:
    """The plans of an arm at a step: the arm's changes, then those of all arms from some step
    on.
    """
    return plans_of(settings.config, _texts(settings, arm, step), _seed(settings, arm))


def wrongs_at(settings: Settings, arm: Arm, step: int) -> Wrongs | None:
    """What delta reads wrongly in an arm at a step, by the same changes; None without any."""
    return wrongs_of(settings.config, _texts(settings, arm, step))


def formats_at(settings: Settings, arm: Arm, step: int) -> Formats | None:
    """What the linear layers of an arm round at a step, by the same changes; None without any."""
    return formats_of(settings.config, _texts(settings, arm, step))


def linears_at(settings: Settings, arm: Arm, step: int) -> LinearPlans | None:
    """The same of one arm, as data with the random bits of the step."""
    formats = formats_at(settings, arm, step)
    if formats is None:
        return None
    plans = linears_by_arm(how_of([formats]), [formats], [_seed(settings, arm)])
    return linear_at(replace(plans, table=plans.table[0]), np.int32(step))


def _texts(settings: Settings, arm: Arm, step: int) -> tuple[str, ...]:
    return (*arm.changes, *(text for first, text in settings.at if first <= step))


def _seed(settings: Settings, arm: Arm) -> int:
    return (settings.config.init_seed + arm.seed) % WORD


def together(found: Sequence[Group]) -> Any:
    """The state of all arms, in their order, on the host."""
    order = np.argsort([a for group in found for a in group.arms], kind="stable")
    return jax.tree.map(
        lambda *leaves: np.concatenate(leaves)[order],
        *(jax.device_get(group.state) for group in found),
    )
