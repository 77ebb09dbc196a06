"""Replays from a checkpoint: the arm as it was, and many changed arms at once, judged by the rule and the history of the run."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from roundscope.attention.plan import Plan
from roundscope.attention.traced_plan import structure
from roundscope.experiments.diagnose.gpt.case import Case
from roundscope.experiments.diagnose.gpt.trials import Trial, Trials, copies
from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.groups import Group, numbers, pick
from roundscope.experiments.train.loop import batches_of
from roundscope.experiments.train.spikes import Watch, divergences

AT_ONCE = {"cpu": 8}  # arms in a launch, by JAX's backend: where they cost as much as one after the other, padding would cost most
MOST = 32
EVERY = 25  # steps between two looks at the device
COMPILERS = 2
Progress = Callable[[int], None]  # arm-steps done since the last time


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The arm replayed with its own plan among the arms that ran with it: (steps,) losses and gradient norms from `first` on,
    and its state, without an axis of arms, at the steps that were asked for.
    """

    first: int
    losses: np.ndarray
    norms: np.ndarray
    states: dict[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where changed arms begin: the arm's state before step `first`, and what the spike rule remembers of its loss."""

    case: Case
    first: int
    state: Any
    watch: dict[str, Any]

    @property
    def steps(self) -> int:
        """Of a replay."""
        return self.case.until - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a replay: the step at which it failed, None if it did not; losses (steps,) of the window."""

    failed: int | None
    losses: np.ndarray


def replay(case: Case, first: int, keep: Collection[int] = ()) -> Own:
    """The run's own arms of one executable from the checkpoint of step `first` on, as they were: the same bits on the same device."""
    members = next(group for group in numbers(case.settings) if case.arm in group)
    state, _ = checkpoint.load(case.folder, first)
    group, batches = Group(case.settings, members, pick(state, members)), batches_of(case.settings)
    column, seen, states = members.index(case.arm), [], {}
    for number in range(first, case.until):
        if number in keep:
            states[number] = jax.tree.map(lambda leaf: leaf[column], jax.device_get(group.state))
        seen.append(group.advance(number, {seed: b.batch(number) for seed, b in batches.items()}))
    losses, norms = np.asarray(jax.device_get(seen))[:, :, column].T
    return Own(first=first, losses=losses, norms=norms, states=states)


def window(case: Case, own: Own, first: int) -> Window:
    """Where arms begin that leave the run at step `first`; `own` kept its state there."""
    _, meta = checkpoint.load(case.folder, own.first)
    watch = Watch("loss", 1)
    watch.restore(meta["watch"][0], [case.arm])
    for number in range(own.first, first):
        watch.update(number, own.losses[None, number - own.first].astype(float))
    return Window(case=case, first=first, state=own.states[first], watch=watch.state())


def judged(w: Window, losses: np.ndarray) -> list[int | None]:
    """The steps at which losses (steps, arms) of the window fail by the run's rule; of a run that only spiked, its rule of spikes."""
    arms, spikes = losses.shape[1], w.case.failure is not None and w.case.failure.kind == "spike"
    watch = Watch("loss", arms)
    found: dict[int, int] = {}
    watch.restore(w.watch, [0] * arms)
    for number, row in enumerate(losses, start=w.first):
        alarms = watch.update(number, row)
        for arm, step in ({a.arm: a.step for a in alarms} if spikes else divergences(alarms)).items():
            found.setdefault(arm, step)
    return [found.get(arm) for arm in range(arms)]


def fates(w: Window, trials: Sequence[Trial], progress: Progress, width: int | None = None) -> list[Fate]:
    """What becomes of the arm in each trial. Those of one structure run vmapped, at most `limit()` at once; with a width they are
    filled up to it, so that all launches share one executable and an arm's bits do not depend on its company.
    """
    with ThreadPoolExecutor(COMPILERS) as pool:  # structures side by side: most of their time is one thread's compilation
        parts = list(pool.map(lambda which: _of_one_structure(w, trials, which, progress, width), _groups(w, trials)))
    found = {number: fate for part in parts for number, fate in part.items()}
    return [found[i] for i in range(len(trials))]


def _of_one_structure(w: Window, trials: Sequence[Trial], which: list[int], progress: Progress, width: int | None) -> dict[int, Fate]:
    found: dict[int, Fate] = {}
    size = width or min(len(which), limit())
    for part in (which[i : i + size] for i in range(0, len(which), size)):
        padded = [*part, *[part[0]] * ((width or len(part)) - len(part))]
        losses = _launch(w, [trials[i] for i in padded], progress, len(part))
        found |= dict(zip(part, _fates(w, losses[:, : len(part)]), strict=True))
    return found


def limit() -> int:
    """Arms in one launch."""
    return AT_ONCE.get(jax.default_backend(), MOST)


def _groups(w: Window, trials: Sequence[Trial]) -> list[list[int]]:
    """Numbers of the trials by the structure of their plans."""
    settings = copies(w.case, 1)
    found: dict[tuple[Plan, ...], list[int]] = {}
    firsts = sorted({w.first, *(first for first, _ in settings.at if w.first < first < w.case.until)})
    for number, trial in enumerate(trials):
        made = tuple(structure(trial.plans(settings, first)[0][0]) for first in firsts)
        found.setdefault(made, []).append(number)
    return list(found.values())


def _launch(w: Window, trials: Sequence[Trial], progress: Progress, counted: int) -> np.ndarray:
    """Losses (steps, arms)."""
    group, batches = Trials(w.case, trials, w.state), batches_of(copies(w.case, 1))
    waiting: list[Any] = []
    losses: list[np.ndarray] = []
    for number in range(w.first, w.case.until):
        waiting.append(group.advance(number, {seed: b.batch(number) for seed, b in batches.items()})[0])
        if len(waiting) == EVERY or number == w.case.until - 1:
            losses += jax.device_get(waiting)
            progress(counted * len(waiting))
            waiting = []
    return np.stack(losses).astype(float)


def _fates(w: Window, losses: np.ndarray) -> list[Fate]:
    return [Fate(failed=step, losses=own) for step, own in zip(judged(w, losses), losses.T, strict=True)]
