"""Replays from one state, of any model: several changes as arms of one executable.

A launch is stopped as soon as all of its trials are decided. A sham is the run as it was with other
last bits of its weights. Divergence is chaotic, so a changed run that survives says something only
if shams do not: places of a launch that no trial needs are shams. One counts only if its launch
went on to the end of the window, which a sham's own fate does not decide. `Clock` is the progress
of all replays; their number to come is known as a lower and an upper bound.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple

import jax
import numpy as np

from roundscope.tools.diagnose.replay.store import Store

Report = Callable[[int, str], None]  # (number of the step, what runs)


class Clock:
    """Counts replays done and to come.

    The time left is that of the replays to come at the rate measured so far, without compilations.
    """

    def __init__(self, report: Report) -> None:
        self.report, self.step, self.what = report, 1, ""
        self.arm_steps = self.replays = self.since = 0
        self.fewest = self.most = 0
        self.seconds, self.timed = 0.0, 0

    def says(self, step: int, what: str) -> None:
        """Report what runs now; the number of replays to come is not known."""
        self.step, self.what, self.fewest, self.most, self.since = step, what, 0, 0, 0
        self.advance(0)

    def expects(self, fewest: int, most: int) -> None:
        """Note how many replays are to come from here on, at least and at most."""
        self.fewest, self.most, self.since = fewest, max(fewest, most), 0
        self.advance(0)

    def advance(self, arm_steps: int) -> None:
        """Add steps of arms that were done, and report."""
        self.arm_steps += arm_steps
        self.report(self.step, self.text)

    def done(self, replays: int, seconds: float) -> None:
        """Add replays that were run in so many seconds; 0 seconds means that they were stored."""
        self.replays, self.since = self.replays + replays, self.since + replays
        if seconds:
            self.seconds, self.timed = self.seconds + seconds, self.timed + replays
        self.advance(0)

    @property
    def left(self) -> tuple[float, float] | None:
        """The seconds that the replays to come take, at least and at most; None while not known."""
        if not (self.timed and self.most):
            return None
        each = self.seconds / self.timed
        return max(self.fewest - self.since, 0) * each, max(self.most - self.since, 0) * each

    @property
    def text(self) -> str:
        """The text for a progress bar."""
        found = f"{self.what}; {self.replays:,} replays, {self.arm_steps:,} steps done"
        if self.most:
            low, high = (max(n - self.since, 0) for n in (self.fewest, self.most))
            found += f"; {low} to {high} replays to come"
        if self.left is not None:
            found += f", {spell(self.left[0])} to {spell(self.left[1])}"
        return found


def spell(seconds: float) -> str:
    """Return seconds in words: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Trial(NamedTuple):
    """A replay: a change of the arithmetic, as its model writes it, and the number of the repeat.

    Repeat 0 begins at the run's own bits, every other one with other last bits of the weights and
    other random bits.
    """

    change: Any
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The outcome of one replay.

    failed   the step at which it failed, None if it did not
    losses   (steps,) up to where it was decided
    """

    failed: int | None
    losses: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A set of exact events, and the fates of its repeats."""

    units: frozenset[Any]
    fates: tuple[Fate, ...]

    @property
    def failures(self) -> int:
        """The number of repeats that failed."""
        return sum(fate.failed is not None for fate in self.fates)

    @property
    def survives(self) -> bool:
        """Whether every repeat of the set survives; a single one may survive by luck."""
        return self.failures == 0

    @property
    def count(self) -> str:
        """The text "k of n": k of n repeats survive."""
        return f"{len(self.fates) - self.failures} of {len(self.fates)}"


def better(fates: Sequence[Fate], others: Sequence[Fate]) -> float:
    """Return p of Fisher's one-sided test: to survive so much more often by chance."""
    from scipy.stats import fisher_exact

    failed = [[f.failed is not None for f in x] for x in (fates, others)]
    table = [[len(own) - sum(own), sum(own)] for own in failed]
    return float(fisher_exact(table, alternative="greater")[1])


# arms in a launch, by JAX's backend: few where they cost as much as one after the other, since
# empty places then cost most
AT_ONCE = {"cpu": 4}
MOST = 32  # arms in a launch on all other backends
COMPILERS = 2
SHAKE = 2.0**-20  # relative change of the weights in a repeat, which must not decide a failure
FIRST_SHAM = 1000  # the repeats from this number on are shams
GAP = 64  # numbers of shams that may be missing in a row: those of launches that ended early


@dataclass(slots=True, kw_only=True)
class Replayer:
    """Replays from one window up to step `until`, exclusive, kept in `store`; shams: all so far.

    A window is where replays begin, and what a model knows of them. It has

    first, as_it_was   their first step; no change
    company            shams in every launch: 1 if an executable must also run the run as it was
    group(trial)       a key: trials with the same one share an executable
    name(trial)        of all that decides a replay's bits, the places of a launch included
    judge(arms)        an object that knows what came before `first` and follows a launch: `update(
                       first, losses, norms)` takes steps (steps, arms), `end(steps)` comes after
                       the last, `failed` has the step at which each arm failed, None so far
    run(trials, until) yields losses and norms (steps, arms), some steps at a time
    """

    window: Any
    until: int
    store: Store
    clock: Clock
    shams: list[Fate] = field(default_factory=list)
    next_sham: int = FIRST_SHAM
    lock: Any = field(default_factory=Lock)

    @property
    def first(self) -> int:
        """The first step."""
        return int(self.window.first)

    @property
    def steps(self) -> int:
        """The number of steps of a replay that survives."""
        return self.until - self.first

    def __call__(self, trials: Sequence[Trial]) -> list[Fate]:
        """Return the fates of trials, in their order."""
        kept = enumerate(map(self._kept, trials))
        found = {i: fate for i, fate in kept if fate is not None}
        self.clock.done(len(found), 0.0)
        groups: dict[Hashable, list[int]] = {}
        for i, trial in enumerate(trials):
            if i not in found:
                groups.setdefault(self.window.group(trial), []).append(i)
        # structures run side by side, since most of their time is one thread's compilation
        with ThreadPoolExecutor(COMPILERS) as pool:
            for part in pool.map(lambda item: self._group(trials, *item), groups.items()):
                found |= part
        return [found[i] for i in range(len(trials))]

    def recall(self) -> None:
        """Take the shams of an earlier diagnosis that was interrupted."""
        number = FIRST_SHAM
        while number < self.next_sham + GAP:
            fate = self._kept(Trial(self.window.as_it_was, number), whole=True)
            number += 1
            if fate is not None:
                self.shams.append(fate)
                self.next_sham = number

    def _kept(self, trial: Trial, whole: bool = False) -> Fate | None:
        """Return the fate of an earlier replay if it is decided; whole: only at its end."""
        kept = self.store.read(self.window.name(trial))
        if kept is None or (whole and len(kept[0]) < self.steps):
            return None
        losses, norms = (x[: self.steps, None] for x in kept)
        judge = self.window.judge(1)
        judge.update(self.first, losses, norms)
        if len(losses) == self.steps:
            judge.end(self.until)
        is_known = len(losses) == self.steps or judge.failed[0] is not None
        return Fate(failed=judge.failed[0], losses=losses[:, 0]) if is_known else None

    def _group(self, trials: Sequence[Trial], group: Hashable, which: list[int]) -> dict[int, Fate]:
        """Return the fates of trials of one executable; shams fill its places."""
        company = self.window.company
        is_filled = company > 0 or group == self.window.group(Trial(self.window.as_it_was))
        size = max(limit() - company, 1)
        found: dict[int, Fate] = {}
        for part in (which[i : i + size] for i in range(0, len(which), size)):
            fates = self._launch([trials[i] for i in part], limit() - len(part) if is_filled else 0)
            found |= dict(zip(part, fates, strict=True))
        return found

    def _launch(self, trials: list[Trial], shams: int) -> list[Fate]:
        """Run trials and shams together until all trials failed or the window ends."""
        with self.lock:
            self.next_sham += shams
            own = range(self.next_sham - shams, self.next_sham)
        whole = [*trials, *(Trial(self.window.as_it_was, i) for i in own)]
        judge, number = self.window.judge(len(whole)), self.first
        began, seconds = time.perf_counter(), 0.0
        chunks: list[tuple[np.ndarray, np.ndarray]] = []
        for losses, norms in self.window.run(whole, self.until):
            chunks.append((losses, norms))
            judge.update(number, losses, norms)
            number += len(losses)
            self.clock.advance(len(losses) * len(whole))
            if len(chunks) == 1:  # its time includes compilation
                began = time.perf_counter()
            if all(step is not None for step in judge.failed[: len(trials)]):
                break
        is_whole = number == self.until
        if is_whole:
            judge.end(self.until)
        if len(chunks) > 1:
            seconds = (time.perf_counter() - began) * len(chunks) / (len(chunks) - 1)
        losses, norms = (np.concatenate(x) for x in zip(*chunks, strict=True))
        kept = len(whole) if is_whole else len(trials)
        names = [self.window.name(t) for t in whole[:kept]]
        self.store.write(names, losses[:, :kept], norms[:, :kept])
        ends = zip(judge.failed, losses.T, strict=True)
        fates = [Fate(failed=step, losses=own) for step, own in ends]
        if is_whole:
            self.shams += fates[len(trials) :]
        self.clock.done(len(trials), seconds)
        return fates[: len(trials)]


def limit() -> int:
    """Return the number of arms in one launch."""
    return AT_ONCE.get(jax.default_backend(), MOST)


def shaken(state: Any, repeat: int) -> Any:
    """Return a state with other last bits of its weights; repeat 0 leaves it as it is."""
    if repeat == 0:
        return state
    rng = np.random.Generator(np.random.Philox(key=repeat))

    def other(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return np.asarray((x * (1.0 + SHAKE * rng.standard_normal(x.shape))).astype(x.dtype))

    return replace(state, params=jax.tree.map(other, state.params))
