"""Replays of a student's run from one of its states.

The run as it was and changed arms are vmapped, in every launch beside a sham.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np

from roundscope.experiments.diagnose.student.case import Case
from roundscope.experiments.diagnose.student.units import FAMILY, Units, change, units_of
from roundscope.experiments.train.step import stacked
from roundscope.experiments.train.student.arms import Arm, Config, how_of, key
from roundscope.experiments.train.student.run import Begin, Follow, advance
from roundscope.tools.diagnose.replay.replayer import Clock, Trial, limit, shaken
from roundscope.tools.diagnose.replay.start import Own
from roundscope.tools.diagnose.replay.store import digest

PAIR = 2  # arms of the smallest launch: one alone is another program with other last bits
AS_IT_WAS, EXACT = "", "-> fp32"
EVERY = 25  # steps after which results are fetched from the device


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
        """Take losses (steps, arms) of the steps from `first` on."""
        for number, row in enumerate(losses, start=first):
            self.follow.update(number, row)

    def end(self, steps: int) -> None:
        """Finish: a spike that still lasts may be a divergence."""
        self.follow.end(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where replays begin.

    begin has an axis of one arm. A trial's change is as `roundscope proxy --arm` reads it, from the
    first step on.
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
        """Return the run's arm with a change."""
        own, more = self.case.own, ((self.first, text),) if text else ()
        return replace(own, name="replay", changes=(*own.changes, *more))

    def group(self, trial: Trial) -> Hashable:
        """Return what a trial needs of an executable, which also runs the run as it was."""
        return how_of(self.case.config, [self.arm(text) for text in (AS_IT_WAS, trial.change)])

    def name(self, trial: Trial) -> str:
        """Return a digest of the run, the state and the change."""
        case = self.case
        return digest(key(case.config, case.own), case.origin, self.first, limit(), *trial)

    def judge(self, arms: int) -> Judge:
        """Return a judge that knows the losses before the first step."""
        return Judge(arms, self.begin.losses)

    def run(self, trials: Sequence[Trial], until: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield losses and gradient norms of the trials, which are vmapped."""
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.begin.state)
        many = stacked([shaken(state, trial.repeat) for trial in trials])
        blank, arms = np.zeros((0, len(trials))), [self.arm(trial.change) for trial in trials]
        now = Begin(self.first, many, blank, blank)
        while now.step < until:
            start, end = now._replace(losses=blank, norms=blank), min(now.step + EVERY, until)
            now, _ = advance(self.case.config, arms, start, end, lambda n: None)
            yield now.losses, now.norms


@dataclass(slots=True, kw_only=True)
class Student:
    """A student's run as the model of `replay.start`; states: those where replays may begin."""

    case: Case
    clock: Clock
    states: dict[int, Begin] = field(default_factory=dict)
    place: str = ""
    others: str = "Consider the learning rate first."
    rule: str = "its loss"
    family: Any = FAMILY
    is_random: bool = False
    same_device: bool = True

    @property
    def units(self) -> Units:
        """The events that round when the run diverged."""
        return units_of(self.case.config, self.case.plan(self.case.failed))

    def exactly(self, units: Collection[Any]) -> str:
        """Return the change that makes units exact."""
        return EXACT if set(units) == self.units else change(units)

    def repair(self, units: Collection[Any], first: int) -> str:
        """Return a command for the run from its first step, exact units from `first` on."""
        own, usual = self.case.own, asdict(Config()) | {"lr": self.case.config.lr}
        config = asdict(self.case.config)
        words = [f"{name}={value}" for name, value in config.items() if value != usual[name]]
        start = "; ".join(text for step, text in own.changes if step == 0)
        later = [*((step, text) for step, text in own.changes if step), (first, change(units))]
        at = " ".join(f"--at '{step}:{part}'" for step, text in later for part in text.split("; "))
        asked = f"{' '.join((*words, f'lr={own.lr:g}'))} --seeds {own.seed}"
        out = f"--out {self.case.folder.name}-repaired"
        return f"roundscope proxy {asked} --arm 'repaired={start}' {at} {out}"

    def own(self) -> Own:
        """Replay the run twice in one launch from the earliest state; keep states of starts."""
        case, now = self.case, self.case.beginning().take([0] * PAIR)
        for until in (*sorted(case.starts), case.until):
            before = now.step
            now = advance(case.config, [case.own] * PAIR, now, until, lambda n: None)[0]
            self.clock.advance(PAIR * (until - before))
            if until < case.until:
                self.states[until] = now.take([0])
        (losses, other), (norms, others) = now.losses.T, now.norms.T
        pairs = (losses, other), (norms, others)
        again = all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
        return Own(first=0, losses=losses, norms=norms, again=again)

    def failed(self, own: Own) -> int | None:
        """Return the step at which the replayed run diverged."""
        judge = Judge(1, own.losses[:, None])
        judge.end(len(own.losses))
        return judge.failed[0]

    def window(self, start: int) -> Window:
        """Return where replays begin."""
        return Window(case=self.case, begin=self.states[start])

    def alike(self, own: Own) -> tuple[int, int]:
        """Return how many points of curve and replay have the same bits, and how many both have."""
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
