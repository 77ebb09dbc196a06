"""Replays of a student's run from one of its states: the run as it was, and changed arms vmapped,
in every launch beside a sham.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.experiments.diagnose.replay.clock import Clock
from roundscope.experiments.diagnose.replay.fate import Trial
from roundscope.experiments.diagnose.replay.replayer import limit, shaken
from roundscope.experiments.diagnose.replay.start import Own
from roundscope.experiments.diagnose.replay.store import digest
from roundscope.experiments.diagnose.student.case import Case
from roundscope.experiments.diagnose.student.units import FAMILY, Units, change, units_of
from roundscope.experiments.train.student.arms import Arm, how_of, key
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.follow import Follow
from roundscope.experiments.train.student.run import Begin, advance

PAIR = 2  # arms of the smallest launch: one alone is another program with other last bits
AS_IT_WAS, EXACT = "", "-> fp32"
EVERY = 25  # steps between two looks at the device


class Judge:
    """Follows arms by the rule of the study (`follow.RULE`), from step 0 on."""

    def __init__(self, arms: int, past: np.ndarray) -> None:
        self.follow = Follow(arms)
        self.update(0, np.broadcast_to(past, (len(past), arms)), past)

    @property
    def failed(self) -> list[int | None]:
        """The step at which each diverged, None so far."""
        return [None if step < 0 else int(step) for step in self.follow.first]

    def update(self, first: int, losses: np.ndarray, norms: np.ndarray) -> None:
        """Losses (steps, arms) of the steps from `first` on."""
        for number, row in enumerate(losses, start=first):
            self.follow.update(number, row)

    def end(self, steps: int) -> None:
        """A spike that still lasts may be a divergence."""
        self.follow.end(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where replays begin. begin: an axis of one arm; a trial's change: as `roundscope proxy --arm`
    reads it, from the first step on.
    """

    case: Case
    begin: Begin
    as_it_was: str = AS_IT_WAS
    company: int = 1

    @property
    def first(self) -> int:
        """The first step of a replay."""
        return self.begin.step

    def arm(self, text: str) -> Arm:
        """The run's arm with a change."""
        own = self.case.own
        return replace(
            own, name="replay", changes=(*own.changes, *([(self.first, text)] if text else []))
        )

    def group(self, trial: Trial) -> Hashable:
        """What it needs of an executable, which runs the run as it was too."""
        return how_of(self.case.config, [self.arm(text) for text in (AS_IT_WAS, trial.change)])

    def name(self, trial: Trial) -> str:
        """Of the run, the state and the change."""
        return digest(
            key(self.case.config, self.case.own), self.case.origin, self.first, limit(), *trial
        )

    def judge(self, arms: int) -> Judge:
        """With the losses before the first step."""
        return Judge(arms, self.begin.losses)

    def run(self, trials: Sequence[Trial], until: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Losses and gradient norms of the trials, vmapped."""
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.begin.state)
        many = jax.tree.map(
            lambda *leaves: jnp.asarray(np.stack(leaves)),
            *(shaken(state, trial.repeat) for trial in trials),
        )
        blank, arms = np.zeros((0, len(trials))), [self.arm(trial.change) for trial in trials]
        now = Begin(self.first, many, blank, blank)
        while now.step < until:
            now, _ = advance(
                self.case.config,
                arms,
                Begin(now.step, now.state, blank, blank),
                min(now.step + EVERY, until),
                lambda n: None,
            )
            yield now.losses, now.norms


@dataclass(slots=True, kw_only=True)
class Student:
    """A student's run as `replay.start` wants a model; states: those where replays may begin."""

    case: Case
    clock: Clock
    states: dict[int, Begin] = field(default_factory=dict)
    place: str = ""
    others: str = "The learning rate comes to mind first."
    rule: str = "its loss"
    family: Any = FAMILY
    is_random: bool = False
    same_device: bool = True

    @property
    def units(self) -> Units:
        """The events that round when the run diverged."""
        return units_of(self.case.config, self.case.plan(self.case.failed))

    def exactly(self, units: Collection[Any]) -> str:
        """The change that makes units exact."""
        return EXACT if set(units) == self.units else change(units)

    def repair(self, units: Collection[Any], first: int) -> str:
        """The run from its first step on, with these units exact from step `first` on."""
        own, usual = self.case.own, Config()
        words = [
            f"{f.name}={getattr(self.case.config, f.name)}"
            for f in fields(Config)
            if f.name not in ("lr", "measure_every")
            and getattr(self.case.config, f.name) != getattr(usual, f.name)
        ]
        start = "; ".join(text for step, text in own.changes if step == 0)
        later = [*((step, text) for step, text in own.changes if step), (first, change(units))]
        at = " ".join(f"--at '{step}:{part}'" for step, text in later for part in text.split("; "))
        asked = " ".join((*words, f"lr={own.lr:g}"))
        return (
            f"roundscope proxy {asked} --seeds {own.seed} --arm 'repaired={start}' {at} --out"
            f" {self.case.folder.name}-repaired"
        )

    def own(self) -> Own:
        """The run as it was, twice in one launch, from the earliest state on; states: of the steps
        where replays may begin.
        """
        case, now = self.case, self.case.beginning().take([0] * PAIR)
        for until in (*sorted(case.starts), case.until):
            before = now.step
            now = advance(case.config, [case.own] * PAIR, now, until, lambda n: None)[0]
            self.clock.advance(PAIR * (until - before))
            if until < case.until:
                self.states[until] = now.take([0])
        again = all(
            np.array_equal(x[:, 0], x[:, 1], equal_nan=True) for x in (now.losses, now.norms)
        )
        return Own(first=0, losses=now.losses[:, 0], norms=now.norms[:, 0], again=again)

    def failed(self, own: Own) -> int | None:
        """The step at which the replayed run diverged."""
        judge = Judge(1, own.losses[:, None])
        judge.end(len(own.losses))
        return judge.failed[0]

    def window(self, start: int) -> Window:
        """Where replays begin."""
        return Window(case=self.case, begin=self.states[start])

    def alike(self, own: Own) -> tuple[int, int]:
        """Points of the file's curve that the replay has with the same bits, and all that both
        have.
        """
        points, before = [p for p in self.case.row.curve if p[0] <= self.case.until], 0
        equal = 0
        for step, loss, norm in points:
            found = own.losses[before:step].max(), own.norms[before]
            equal += all(
                a == b or not (np.isfinite(a) or np.isfinite(b))
                for a, b in zip(found, (loss, norm), strict=True)
            )
            before = step
        return equal, len(points)
