"""Replays of a GPT's arm, from one of its states: as it was among the arms of its run, and changed.

They are judged by the rules and the past of the run.
"""

import hashlib
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from roundscope.attention.plans.plan import Plan
from roundscope.experiments.diagnose.gpt.case import Case
from roundscope.experiments.diagnose.gpt.units import (
    FAMILY,
    Edit,
    Units,
    change_words,
    exactly,
    reseeded,
)
from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.gpt.plans import Plans, Tables, by_arm, by_layer, structures
from roundscope.experiments.train.groups import Group, by_stage, drawing, numbers, plans_at
from roundscope.experiments.train.settings import Settings, plain
from roundscope.experiments.train.spikes import Watch, divergences, growth
from roundscope.experiments.train.step import arm, pick
from roundscope.tools.diagnose.replay.replayer import Clock, Trial, limit, shaken
from roundscope.tools.diagnose.replay.start import Own
from roundscope.tools.diagnose.replay.store import Store, digest
from roundscope.tools.results.machine import device

EVERY = {"cpu": 5}  # steps after which results are fetched from the device, by JAX's backend
SELDOM = 25  # the same for all other backends
AGAIN = 10  # steps of a second replay, where the log is of another device


def AS_IT_WAS(plans: Plans) -> Plans:
    """Return the plans unchanged."""
    return plans


class Judge:
    """Decides by the run's own rules at which step each arm of a launch has failed.

    These are the rule for losses (for a run that only spiked, its rule of spikes) and, where the
    run's gradient norm grew, the rule of growth. An arm has failed at the first step of either.
    """

    def __init__(self, case: Case, watch: dict[str, Any], past: np.ndarray, arms: int) -> None:
        self.case, self.first = case, len(past)
        self.spikes = case.failure is not None and case.failure.kind == "spike"
        self.watch = Watch("loss", arms)
        self.watch.restore(watch, [0] * arms)
        self.norms = np.repeat(past[:, None], arms, axis=1)
        self.failed: list[int | None] = [None] * arms

    def update(self, first: int, losses: np.ndarray, norms: np.ndarray) -> None:
        """Take losses and gradient norms (steps, arms) of the steps from `first` on."""
        for number, row in enumerate(losses, start=first):
            alarms = self.watch.update(number, row)
            steps = {x.arm: x.step for x in alarms} if self.spikes else divergences(alarms)
            for a, step in steps.items():
                self._fails(a, step)
        self.norms = np.concatenate([self.norms, norms])
        if self.case.grown is not None:
            for a, grown in enumerate(growth(self.norms)):
                if grown is not None and grown >= self.first:
                    self._fails(a, grown)

    def _fails(self, a: int, step: int) -> None:
        now = self.failed[a]
        self.failed[a] = step if now is None else min(now, step)

    def end(self, steps: int) -> None:
        """Do nothing: both rules decide at each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where changed arms begin.

    first     the first step;  state: the arm's state before it
    watch     what the spike rule remembers;  past: the gradient norms so far
    sha256    of the state
    """

    case: Case
    first: int
    state: Any
    watch: dict[str, Any]
    past: np.ndarray
    sha256: str
    as_it_was: Edit = AS_IT_WAS
    company: int = 0

    def _plans(self, trial: Trial) -> list[Any]:
        settings = copies(self.case, 1)
        firsts = sorted({self.first, *(n for n, _ in settings.at if n > self.first)})
        return [(n, plans_of(settings, trial, n)) for n in firsts]

    def group(self, trial: Trial) -> Hashable:
        """Return the structures of the trial's plans, which decide its executable."""
        last = self.case.longest
        return tuple((n, structures(plans)) for n, plans in self._plans(trial) if n < last)

    def name(self, trial: Trial) -> str:
        """Return a digest of the state, the run, and the plans of all stages."""
        arm = plain(self.case.settings.config), repr(self.case.own), self.first
        return digest([self.sha256, *arm, limit(), trial.repeat], _in_full(self._plans(trial)))

    def judge(self, arms: int) -> Judge:
        """Return a judge that knows the past of the run."""
        return Judge(self.case, self.watch, self.past, arms)

    def run(self, trials: Sequence[Trial], until: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield losses and gradient norms of the trials, which are vmapped."""
        group, drawn = Trials(self.case, trials, self.state), drawing(copies(self.case, 1))
        every = EVERY.get(jax.default_backend(), SELDOM)
        for start in range(self.first, until, every):
            steps = range(start, min(start + every, until))
            seen = [group.advance(n, drawn(n)) for n in steps]
            losses, norms = np.asarray(jax.device_get(seen), float).swapaxes(0, 1)
            yield losses, norms


@dataclass(slots=True, kw_only=True)
class Gpt:
    """A GPT's arm as the model of `replay.start`; states: those of its replay, by step."""

    case: Case
    store: Store
    clock: Clock
    states: dict[int, Any] = field(default_factory=dict)
    place: str = " in attention"
    family: Any = FAMILY

    @property
    def units(self) -> Units:
        """All units that round in some step of the window."""
        units: Units = self.case.units
        return units

    @property
    def others(self) -> str:
        """What to consider where rounding is not the cause."""
        rate = f"the learning rate, {self.case.own.lr:g}"
        return f"Consider {rate}, first; then the data and the linear layers."

    @property
    def rule(self) -> str:
        """The quantity by which a replay fails, in words."""
        if self.case.grown is None:
            return "its loss"
        return "its gradient norm, ten times its lowest, or its loss"

    def repair(self, units: Units, first: int) -> str:
        """Return a command that branches the run from step `first` on with these units exact."""
        name, change = self.case.own.name, change_words(units)
        return (
            f"roundscope train --resume {self.case.folder} --from {first} --arm '{name}={change}'"
            f" --out {self.case.folder.name}-repaired"
        )

    @property
    def is_random(self) -> bool:
        """Return whether the arm's plan draws random bits."""
        return self.case.is_random

    @property
    def same_device(self) -> bool:
        """Return whether the log was written on a device like this one."""
        return str(self.case.about["device"]).startswith(device("xla"))

    def exactly(self, units: Collection[Any]) -> Edit:
        """Return the edit that makes units exact."""
        return exactly(units)

    def own(self) -> Own:
        """Replay the arm from the last usable checkpoint, or read what was kept of it."""
        case, first = self.case, self.case.known[0]
        keep = {n for n in (*case.starts, case.looked, first) if n >= first}
        state, meta = checkpoint.load(case.folder, first)
        blank = arm(state, case.arm)
        run = repr(case.settings), case.arm, sorted(keep), case.until
        name = digest("own", meta["sha256"], *run)
        leaves, tree = jax.tree.flatten(blank)
        kept = self.store.arrays(name)
        if kept is None:
            losses, norms, self.states = self._replay(first, case.until, keep)
            again = self.equal(first, losses)
            if not again:  # of another device; some steps of a second replay decide
                second, _, _ = self._replay(first, first + AGAIN, ())
                again = np.array_equal(second, losses[: len(second)], equal_nan=True)
            named = {
                f"{n} {i}": np.asarray(x)
                for n, state in self.states.items()
                for i, x in enumerate(jax.tree.leaves(state))
            }
            named |= {"losses": losses, "norms": norms, "again": np.array(again)}
            self.store.keep(name, named)
            return Own(first=first, losses=losses, norms=norms, again=again)
        steps = {int(n.partition(" ")[0]) for n in kept if " " in n}
        self.states = {
            n: jax.tree.unflatten(tree, [kept[f"{n} {i}"] for i in range(len(leaves))])
            for n in steps
        }
        losses, norms, again = kept["losses"], kept["norms"], bool(kept["again"])
        return Own(first=first, losses=losses, norms=norms, again=again)

    def _replay(
        self, first: int, until: int, keep: Collection[int]
    ) -> tuple[np.ndarray, np.ndarray, dict[int, Any]]:
        """Replay with the run's own arms of one executable, for the same bits, until it fails."""
        case = self.case
        members = next(group for group in numbers(case.settings) if case.arm in group)
        state, meta = checkpoint.load(case.folder, first)
        group = Group(case.settings, members, pick(state, members))
        drawn = drawing(case.settings)
        column = members.index(case.arm)
        states = {}
        every = EVERY.get(jax.default_backend(), SELDOM)
        judge, found = self._judge(first, meta), []
        for start in range(first, until, every):
            seen = []
            for n in range(start, min(start + every, until)):
                if n in keep:
                    states[n] = jax.tree.map(lambda leaf: leaf[column], jax.device_get(group.state))
                seen.append(group.advance(n, drawn(n)))
            found.append(np.asarray(jax.device_get(seen), float)[:, :, column])
            judge.update(start, *(x[:, None] for x in found[-1].T))
            self.clock.advance(len(members) * len(seen))
            if judge.failed[0] is not None and start + every > max(keep, default=0):
                break
        losses, norms = np.concatenate(found).T
        return losses, norms, states

    def equal(self, first: int, losses: np.ndarray) -> bool:
        """Return whether the log has these losses, bit for bit: then they were computed twice."""
        logged = [self.case.losses.get(n, np.inf) for n in range(first, first + len(losses))]
        return all(same(a, b) for a, b in zip(logged, losses, strict=True))

    def alike(self, own: Own) -> tuple[int, int]:
        """Return how many losses log and replay have with the same bits, and how many both have."""
        steps = [n for n in range(own.first, own.first + len(own.losses)) if n in self.case.losses]
        return sum(same(self.case.losses[n], own.losses[n - own.first]) for n in steps), len(steps)

    def failed(self, own: Own) -> int | None:
        """Return the step at which the replayed arm failed."""
        judge = self._judge(own.first, checkpoint.load(self.case.folder, own.first)[1])
        judge.update(own.first, own.losses[:, None], own.norms[:, None])
        return judge.failed[0]

    def _judge(self, first: int, meta: dict[str, Any]) -> Judge:
        return Judge(self.case, self._watch(meta).state(), self._past(first), 1)

    def _watch(self, meta: dict[str, Any]) -> Watch:
        """Return what the spike rule had kept of the arm in a checkpoint."""
        watch = Watch("loss", 1)
        watch.restore(meta["watch"][0], [self.case.arm])
        return watch

    def _past(self, first: int) -> np.ndarray:
        return np.array([self.case.norms.get(n, np.nan) for n in range(first)], float)

    def window(self, start: int) -> Window:
        """Return the window of arms that leave the run, or a checkpoint before, at `start`."""
        case = self.case
        first = max(n for n in case.known if n <= start)
        state, meta = checkpoint.load(case.folder, first)
        watch, past = self._watch(meta), self._past(start)
        for n in range(first, start):
            watch.update(n, np.array([case.losses.get(n, np.nan)]))
        own = self.states[start] if start in self.states else arm(state, case.arm)
        content = b"".join(np.ascontiguousarray(x).tobytes() for x in jax.tree.leaves(own))
        return Window(
            case=case,
            first=start,
            state=own,
            watch=watch.state(),
            past=past,
            sha256=hashlib.sha256(content).hexdigest(),
        )


def same(logged: float, found: float) -> bool:
    """Return whether two losses have the same bits, or neither is finite."""
    return logged == float(found) or not (np.isfinite(logged) or np.isfinite(found))


def _in_full(x: Any) -> str:
    """Return lists and tuples with every field of the plans in them, as older keys have it."""
    if isinstance(x, Plan):
        return x.in_full()
    if isinstance(x, list):
        return f"[{', '.join(map(_in_full, x))}]"
    if isinstance(x, tuple):
        return f"({', '.join(map(_in_full, x))}{',' * (len(x) == 1)})"
    return repr(x)


def plans_of(settings: Settings, trial: Trial, number: int) -> Plans:
    """Return the plans of a trial at a step: an edit of the plans of `settings`' first arm."""
    plans = plans_at(settings, settings.arms[0], number)
    assert plans is not None
    return reseeded(trial.repeat)(trial.change(plans))


class Trials(Group):
    """Copies of one arm, each edited as its trial says."""

    def __init__(self, case: Case, trials: Sequence[Trial], state: Any) -> None:
        self.trials = trials
        states = (shaken(state, trial.repeat) for trial in trials)
        many = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
        super().__init__(copies(case, len(trials)), list(range(len(trials))), many)

    @by_stage
    def plans(self, number: int) -> tuple[Tables | None, list[Plans | None]]:
        """Return the plans of a step as the parent does, edited."""
        found = [plans_of(self.settings, trial, number) for trial in self.trials]
        return self.place.state(by_arm([by_layer(plans) for plans in found])), list(found)


def copies(case: Case, count: int) -> Settings:
    """Return the settings of `count` copies of the case's arm."""
    return replace(case.settings, arms=(case.own,) * count)
