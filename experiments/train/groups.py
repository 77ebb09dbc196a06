"""Arms that run in one executable: same structure of plans for the whole run, states stacked, plans from each step on."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from attention.plan import Plan
from attention.traced_plan import HeadPlans, structure
from experiments.train import devices
from experiments.train import step as one_step
from experiments.train.config import WORD
from experiments.train.interventions import Plans, plans_of
from experiments.train.offset import Offset
from experiments.train.plans import by_arm, by_layer
from experiments.train.settings import Arm, Settings


class Group:
    """Arms of one executable: their numbers, their state on the devices, their peak rates, their offsets if there are any."""

    def __init__(self, settings: Settings, arms: list[int], state: Any, offset: Offset | None = None) -> None:
        self.settings, self.arms = settings, arms
        self.place = devices.place(settings.config, arms)
        self.state = self.place.state(state)
        self.lr = self.place.state(np.array([settings.arms[a].lr for a in arms], np.float32))
        self.seeds = [settings.arms[a].seed for a in arms]
        self.offset = None if offset is None else self.place.state(offset)
        self._advance = one_step.advance(settings.config)
        self._plans: dict[int, tuple[HeadPlans | None, list[Plans | None]]] = {}

    def advance(self, number: int, batches: dict[int, np.ndarray]) -> tuple[Any, Any]:
        """Step `number` with the batch of each seed. Losses and gradient norms (arms,), on the device."""
        tokens = self.place.tokens(self.own(batches))
        self.state, losses, norms = self._advance(self.state, tokens, self.plans(number)[0], self.lr, self.offset)
        return losses, norms

    def own(self, batches: dict[int, np.ndarray]) -> np.ndarray:
        """The group's tokens: (B, T + 1) if its arms share a seed, else (A, B, T + 1)."""
        return batches[self.seeds[0]] if len(set(self.seeds)) == 1 else np.stack([batches[seed] for seed in self.seeds])

    def plans(self, number: int) -> tuple[HeadPlans | None, list[Plans | None]]:
        """The plans of a step, as data on the devices and as plans."""
        stage = sum(first <= number for first, _ in self.settings.at)
        if stage not in self._plans:
            plans = [plans_at(self.settings, self.settings.arms[a], number) for a in self.arms]
            tables = by_arm([None if p is None else by_layer(p) for p in plans])
            self._plans[stage] = None if tables is None else self.place.state(tables), plans
        return self._plans[stage]


def groups(settings: Settings, state: Any) -> list[Group]:
    """The groups of all arms, from a state of all arms in their order."""
    return [Group(settings, arms, pick(state, arms)) for arms in numbers(settings)]


def numbers(settings: Settings) -> list[list[int]]:
    """Numbers of the arms that share a structure at every step. Raises UsageError for changes that no plan can take."""
    found: dict[tuple[Plan | None, ...], list[int]] = {}
    firsts = sorted({0, *(first for first, _ in settings.at)})
    for number, arm in enumerate(settings.arms):
        plans = [plans_at(settings, arm, first) for first in firsts]
        found.setdefault(tuple(None if p is None else structure(p[0][0]) for p in plans), []).append(number)
    return list(found.values())


def plans_at(settings: Settings, arm: Arm, step: int) -> Plans | None:
    """The plans of an arm at a step: the arm's changes, then those of all arms from some step on."""
    later = [text for first, text in settings.at if first <= step]
    return plans_of(settings.config, (*arm.changes, *later), (settings.config.init_seed + arm.seed) % WORD)


def together(found: Sequence[Group]) -> Any:
    """The state of all arms, in their order, on the host."""
    order = np.argsort([a for group in found for a in group.arms], kind="stable")
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *(jax.device_get(group.state) for group in found))


def pick(state: Any, arms: Sequence[int]) -> Any:
    """The states of some arms."""
    return jax.tree.map(lambda leaf: leaf[np.asarray(arms)], state)
