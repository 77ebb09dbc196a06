"""Groups of arms that run in one executable, and the loop of all trainings.

The plans of a group's arms have the same structure for the whole run; their states are stacked.
`blocks` is the loop of whatever has a step: steps one after the other, fetched in blocks, so that
the device never waits for the host.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from roundscope.experiments.train import devices
from roundscope.experiments.train.config import PALLAS, WORD, Config
from roundscope.experiments.train.gpt import data
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.engines import check_engine, fused_plan, only_plan
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.linear import LinearPlans, formats_of, how_of, linear_at
from roundscope.experiments.train.gpt.linear import by_arm as linears_by_arm
from roundscope.experiments.train.gpt.offset import (
    Offset,
    Wrongs,
    check,
    offsets,
    readable,
    wrongs_of,
)
from roundscope.experiments.train.gpt.plans import (
    Fixed,
    Plans,
    Tables,
    by_arm,
    by_layer,
    likes,
    structures,
)
from roundscope.experiments.train.mx import Formats
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.experiments.train.step import pick

T = TypeVar("T")


def by_stage(make: Callable[[Any, int], T]) -> Callable[[Any, int], T]:
    """Let a method of a group be called once for all steps between two changes of all arms."""

    def kept(group: "Group", number: int) -> T:
        key = make.__name__, sum(first <= number for first, _ in group.settings.at)
        if key not in group.kept:
            group.kept[key] = make(group, number)
        found: T = group.kept[key]
        return found

    return functools.update_wrapper(kept, make)


class Group:
    """The arms of one executable: their numbers, their state on the devices, their peak rates.

    is_long: whether the run has so many steps that a step with the plan as part of it pays, where
    all arms, layers and heads have one plan at all steps (`engines.only_plan`). there: devices, by
    default all of this machine.
    """

    def __init__(
        self,
        settings: Settings,
        arms: list[int],
        state: Any,
        *,
        is_long: bool = False,
        there: Sequence[Any] | None = None,
    ) -> None:
        self.settings, self.arms = settings, arms
        self.is_long = is_long and not settings.at
        self.place = devices.place(settings.config, arms, there)
        self.state = self.place.state(state)
        self.lr = self.place.state(np.array([settings.arms[a].lr for a in arms], np.float32))
        self.seeds = [settings.arms[a].seed for a in arms]
        self.kept: dict[tuple[str, int], Any] = {}

    def advance(self, number: int, batches: dict[int, np.ndarray]) -> tuple[Any, Any]:
        """Do step `number` with the batches; return losses and norms (arms,), on the device."""
        tokens, (advance, sole) = self.place.tokens(self.own(batches)), self._executable(number)
        plans = None if sole else self.plans(number)[0]
        self.state, losses, norms = advance(
            self.state, tokens, plans, self.lr, self.offset(number), self.linears(number)
        )
        return losses, norms

    def fused(self, number: int) -> Fixed | None:
        """Return the plan, or those of its layers, of a step's fused kernels; None without any."""
        return self.sole(number) if self.settings.config.engine == PALLAS else None

    def sole(self, number: int) -> Fixed | None:
        """Return the plan that is part of a step; None where plans are data of it."""
        return self._executable(number)[1]

    @by_stage
    def _executable(self, number: int) -> tuple[one_step.Step, Fixed | None]:
        """Return the executable of a step, and what `sole` returns."""
        config, arm = self.settings.config, self.settings.arms[self.arms[0]]
        plans, wrongs = self.plans(number)[1], wrongs_at(self.settings, arm, number)
        own = _fused(config, plans[0], wrongs)
        if self.is_long and own is None:
            own = only_plan(config, plans, wrongs)
        return one_step.advance(config, own, self.place.mesh), own

    def own(self, batches: dict[int, np.ndarray]) -> np.ndarray:
        """Return the group's tokens: (B, T + 1) if its arms share a seed, else (A, B, T + 1)."""
        if len(set(self.seeds)) == 1:
            return batches[self.seeds[0]]
        return np.stack([batches[seed] for seed in self.seeds])

    @by_stage
    def plans(self, number: int) -> tuple[Tables | None, list[Plans | None]]:
        """Return the plans of a step, as data on the devices and as plans."""
        plans = [plans_at(self.settings, self.settings.arms[a], number) for a in self.arms]
        tables = by_arm([None if p is None else by_layer(p) for p in plans])
        return None if tables is None else self.place.state(tables), plans

    @by_stage
    def offset(self, number: int) -> Offset | None:
        """Return the error of what delta reads at a step, on the devices; None for none read."""
        now, seeds = self._changed(wrongs_at, number, "an offset")
        found: Offset | None = self.place.state(offsets(now, seeds)) if now else None
        tables = self.plans(number)[0]
        return found if tables is not None and any(map(readable, likes(tables))) else None

    @by_stage
    def linears(self, number: int) -> LinearPlans | None:
        """Return what changed linear layers round at a step, on the devices; None for none.

        From the first change on one executable serves the formats of all arms at all steps.
        """
        now, seeds = self._changed(formats_at, number, "changes of linear layers")
        if not now:
            return None
        arms, steps = [self.settings.arms[a] for a in self.arms], firsts(self.settings)
        ever = (formats_at(self.settings, arm, first) for arm in arms for first in steps)
        how = how_of([formats for formats in ever if formats is not None])
        found: LinearPlans = self.place.state(linears_by_arm(how, now, seeds))
        return found

    def _changed(self, of: Callable[..., T | None], number: int, what: str) -> tuple[list[T], Any]:
        """Return of(settings, arm, step) of all arms, or of none; and the arms' seeds."""
        arms = [self.settings.arms[a] for a in self.arms]
        now = [x for arm in arms if (x := of(self.settings, arm, number)) is not None]
        if 0 < len(now) < len(arms):
            raise ValueError(f"arms: some have {what} and others have none; run them separately")
        return now, [_seed(self.settings, arm) for arm in arms]


def groups(settings: Settings, state: Any, *, is_long: bool = False) -> list[Group]:
    """Return the groups of all arms, from a state of all arms in their order; is_long as there."""
    return [Group(settings, arms, pick(state, arms), is_long=is_long) for arms in numbers(settings)]


def numbers(settings: Settings) -> list[list[int]]:
    """Return the numbers of the arms that share a structure at every step, by group.

    Raises UsageError for changes and engines that are not possible.
    """
    check_engine(settings.config)
    by_structure: dict[tuple[Hashable, ...], list[int]] = {}
    for number, arm in enumerate(settings.arms):
        key = tuple(_structure(settings, arm, first) for first in firsts(settings))
        by_structure.setdefault(key, []).append(number)
    return list(by_structure.values())


def firsts(settings: Settings) -> list[int]:
    """Return the steps from which something changes, 0 among them, in ascending order."""
    return sorted({0, *(first for first, _ in settings.at)})


def _structure(settings: Settings, arm: Arm, step: int) -> Hashable:
    """Return what decides an executable.

    That is the structure of each layer's plans, whether there is an error of what delta reads, and
    which events of linear layers draw random bits.
    """
    plans = plans_at(settings, arm, step)
    wrongs = wrongs_at(settings, arm, step)
    formats = formats_at(settings, arm, step)
    check(plans, wrongs, (*settings.config.changes, *_texts(settings, arm, step)))
    own = _fused(settings.config, plans, wrongs) or (plans and structures(plans))
    return own, wrongs is not None, formats and (formats.drawn, formats.even)


def _fused(config: Config, plans: Plans | None, wrongs: Wrongs | None) -> Fixed | None:
    """Return the plan that an arm's fused kernels have, or those of its layers; None without."""
    return None if config.engine != PALLAS or plans is None else fused_plan(config, plans, wrongs)


def plans_at(settings: Settings, arm: Arm, step: int) -> Plans | None:
    """Return an arm's plans at a step, by its changes, then those of all arms that hold there."""
    return plans_of(settings.config, _texts(settings, arm, step), _seed(settings, arm))


def wrongs_at(settings: Settings, arm: Arm, step: int) -> Wrongs | None:
    """Return the error of what delta reads in an arm at a step, by the same changes, or None."""
    return wrongs_of(settings.config, _texts(settings, arm, step))


def formats_at(settings: Settings, arm: Arm, step: int) -> Formats | None:
    """Return what an arm's linear layers round at a step, by the same changes, or None."""
    return formats_of(settings.config, _texts(settings, arm, step))


def linears_at(settings: Settings, arm: Arm, step: int) -> LinearPlans | None:
    """Return `formats_at` of one arm as data, with the random bits of the step."""
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
    """Return the state of all arms, in their order, on the host."""
    order = np.argsort([a for group in found for a in group.arms], kind="stable")
    return jax.tree.map(
        lambda *leaves: np.concatenate(leaves)[order],
        *(jax.device_get(group.state) for group in found),
    )


EVERY = 25  # steps of a block, after which results are fetched from the device
Batches = dict[int, np.ndarray]  # seed of arms -> tokens


class Block(NamedTuple):
    """Steps that are done.

    done           the number of steps after it
    losses, norms  (steps of the block, arms) as the device has them, at the weights before each
                   step
    look           what `look(done)` returned, on the host
    """

    done: int
    losses: np.ndarray
    norms: np.ndarray
    look: Any


def blocks(
    advance: Callable[[int], tuple[Any, Any]],
    first: int,
    last: int,
    *,
    every: int = EVERY,
    look: Callable[[int], Any] = lambda done: None,
    ahead: bool = True,
) -> Iterator[Block]:
    """Do steps `first` to `last` (not included) and yield them in blocks, in their order.

    advance  does a step by its number and returns (losses (arms,), gradient norms (arms,)), on the
             device
    every    the number of steps of a block
    look     called after the last step of a block, on states as they are then
    ahead    whether a block is sent before the one before it is fetched; False where the caller may
             stop early, or changes what follows
    """
    waiting: list[tuple[int, list[tuple[Any, Any]], Any]] = []
    for start in range(first, last, every):
        done = min(start + every, last)
        waiting.append((done, [advance(number) for number in range(start, done)], look(done)))
        if not ahead or len(waiting) > 1:
            yield _fetched(*waiting.pop(0))
    if waiting:
        yield _fetched(*waiting.pop())


def _fetched(done: int, seen: list[tuple[Any, Any]], look: Any) -> Block:
    seen, look = jax.device_get((seen, look))
    losses, norms = (np.stack(column) for column in zip(*seen, strict=True))
    return Block(done, losses, norms, look)


def batches_of(settings: Settings) -> dict[int, data.Batches]:
    """Return seed of arms -> batches."""
    c, seeds = settings.config, dict.fromkeys(arm.seed for arm in settings.arms)
    return {seed: data.batches(c, c.data_seed + seed) for seed in seeds}


def drawing(settings: Settings) -> Callable[[int], Batches]:
    """Return a function that returns the batches of a step by its number."""
    batches = batches_of(settings)
    return lambda number: {seed: own.batch(number) for seed, own in batches.items()}


def replayed(settings: Settings, state: Any, first: int, last: int) -> Any:
    """Return the state of all arms at step `last`, from that at `first`, by the steps between."""
    own, drawn = groups(settings, state), drawing(settings)
    for number in range(first, last):
        tokens = drawn(number)
        for group in own:
            group.advance(number, tokens)
    return together(own)
