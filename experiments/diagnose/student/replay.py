"""Replays of a proxy's run from one of its states: changed arms vmapped, in every launch beside shams, all kept as they come.

A sham is the run as it was with other last bits of its weights. Divergence is chaotic, so a changed arm that survives says something
only if shams do not: every launch carries one, and every free place of a launch is filled with another.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.experiments.diagnose.gpt.replay import Fate, Progress, limit
from roundscope.experiments.diagnose.gpt.trials import shaken
from roundscope.experiments.diagnose.replay.store import Kept
from roundscope.experiments.diagnose.student.case import Case
from roundscope.experiments.results.machine import device
from roundscope.experiments.train.student.arms import Arm, key
from roundscope.experiments.train.student.follow import Follow
from roundscope.experiments.train.student.linear import How
from roundscope.experiments.train.student.run import Begin, advance, how_of

PAIR = 2  # arms of the smallest launch: one alone is another program with other last bits
AS_IT_WAS, EXACT = "", "-> fp32"
FIRST_SHAM = 1000  # repeats from here on are shams'


class Trial(NamedTuple):
    """A replay: the changes from its first step on, as `roundscope proxy --arm` reads them; repeat 0 begins at the run's own bits."""

    text: str
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The run replayed, twice in one launch: losses and gradient norms (steps, 2) from step 0 on; its states, an axis of one arm."""

    losses: np.ndarray
    norms: np.ndarray
    states: dict[int, Begin]

    @property
    def again(self) -> bool:
        """Whether both have the same bits."""
        return all(np.array_equal(x[:, 0], x[:, 1], equal_nan=True) for x in (self.losses, self.norms))


def own(case: Case, progress: Progress) -> Own:
    """The run as it was, from the earliest state on; states: of the steps where replays may begin."""
    now, states = case.beginning().take([0] * PAIR), {}
    for until in (*sorted(case.starts), case.until):
        before = now.step
        now = advance(case.config, [case.own] * PAIR, now, until, lambda n: None)[0]
        progress(PAIR * (until - before))
        if until < case.until:
            states[until] = now.take([0])
    return Own(losses=now.losses, norms=now.norms, states=states)


def judged(losses: np.ndarray) -> list[int | None]:
    """The steps at which losses (steps, arms) from step 0 on diverge, by the rule of the study (`follow.RULE`)."""
    follow = Follow(losses.shape[1])
    for number, row in enumerate(losses):
        follow.update(number, row)
    follow.end(len(losses))
    return [None if step < 0 else int(step) for step in follow.first]


@dataclass(slots=True, kw_only=True)
class Replayer:
    """Replays from one state. begin: an axis of one arm; folder: where results are kept; shams: all so far."""

    case: Case
    begin: Begin
    folder: Path
    progress: Progress
    shams: list[Fate] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Of a replay."""
        return self.case.until - self.begin.step

    def arm(self, text: str) -> Arm:
        """The run's arm with changes from the first step of the replay on."""
        own = self.case.own
        return replace(own, name="replay", changes=(*own.changes, *([(self.begin.step, text)] if text else [])))

    def __call__(self, trials: Sequence[Trial]) -> list[Fate]:
        """What becomes of each, in their order. Those that need one executable, with the run as it was, go together."""
        groups: dict[How, list[int]] = {}
        for i, trial in enumerate(trials):
            how = how_of(self.case.config, [self.arm(text) for text in (AS_IT_WAS, trial.text)])
            groups.setdefault(how, []).append(i)
        found: dict[int, Fate] = {}
        for which in groups.values():
            for part in (which[i : i + limit() - 1] for i in range(0, len(which), limit() - 1)):
                found |= dict(zip(part, self._launch([trials[i] for i in part]), strict=True))
        return [found[i] for i in range(len(trials))]

    def _launch(self, trials: list[Trial]) -> list[Fate]:
        """A launch of `limit()` places, so that one executable serves all of its kind; the shams go to `shams`."""
        number = FIRST_SHAM + len(self.shams)
        whole = [*trials, *(Trial(AS_IT_WAS, number + i) for i in range(limit() - len(trials)))]
        with Kept(self.folder) as kept:
            names = [self._name(trial) for trial in whole]
            losses = kept.read(names)
            if losses is None:
                losses = self._run(whole)
                kept.write(names, losses)
        before = np.broadcast_to(self.begin.losses, (self.begin.step, len(whole)))
        steps = judged(np.concatenate([before, losses]))
        fates = [Fate(failed=step, losses=column) for step, column in zip(steps, losses.T, strict=True)]
        self.shams += fates[len(trials) :]
        self.progress(len(whole) * self.steps)
        return fates[: len(trials)]

    def _run(self, trials: Sequence[Trial]) -> np.ndarray:
        """Losses (steps, trials) from the first step of the replay on."""
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.begin.state)
        many = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *(shaken(state, trial.repeat) for trial in trials))
        blank = np.zeros((0, len(trials)))
        arms = [self.arm(trial.text) for trial in trials]
        return advance(self.case.config, arms, Begin(self.begin.step, many, blank, blank), self.case.until, lambda n: None)[0].losses

    def _name(self, trial: Trial) -> str:
        own = [key(self.case.config, self.case.own), self.case.origin, self.begin.step, self.case.until, limit(), device("xla"), *trial]
        return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:32]


def better(fates: Sequence[Fate], shams: Sequence[Fate]) -> float:
    """p of Fisher's exact test, one-sided: that replays survive this much more often than shams though they differ in nothing."""
    from scipy.stats import fisher_exact  # type: ignore[import-untyped]

    table = [[sum(f.failed is None for f in x), sum(f.failed is not None for f in x)] for x in (fates, shams)]
    return float(fisher_exact(table, alternative="greater")[1])
