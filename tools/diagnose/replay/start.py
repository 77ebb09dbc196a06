"""Step 1 of a run, and the call of step 2.

The run is replayed; then, from a late state, as it was and with everything exact. The state is the
latest from which the run as it was fails in all its repeats and the exact one survives in all;
without one, that where they differ most, if each does so more often than not. The later the state,
the fewer steps a replay takes, and the less it depends on last bits. A window ends some time after
the last of the failures in it. Where no state decides, all are tried once more with the longest
window.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from roundscope.tools.diagnose.replay.replayer import Clock, Fate, Outcome, Replayer, Trial, better
from roundscope.tools.diagnose.replay.store import Store
from roundscope.tools.diagnose.search import Guilty, guilty

SANITY = 4  # repeats of the run as it was and of the exact one
# after the last of the failures a window goes on for SPREADS times their spread, and at least for
# SETTLED steps
SPREADS = 2
SETTLED = 12
MORE = 2  # earlier states that are tried where one decides, but not in all repeats
LEVEL = 0.01  # p below which a set survives more often than the run as it was


class Cause(StrEnum):
    """What the replays say about the failure."""

    ROUNDING = "rounding"
    OTHER = "not rounding"
    UNDECIDED = "not decided: replays with other last bits end differently"
    LOST = "not decided: the failure was not replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The run replayed as it was.

    losses, norms   losses and gradient norms (steps,) from step `first` on
    again           whether a second replay has the same bits
    """

    first: int
    losses: np.ndarray
    norms: np.ndarray
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanity:
    """The arm as it was and with everything exact, each several times, from one state.

    All repeats but the first have other last bits.
    """

    first: int
    until: int
    low: Outcome
    exact: Outcome

    @property
    def fails(self) -> bool:
        """Return whether the arm as it was fails more often than not."""
        return 2 * self.low.failures > len(self.low.fates)

    @property
    def holds(self) -> bool:
        """Return whether the exact one survives more often than not."""
        return 2 * self.exact.failures < len(self.exact.fates)

    @property
    def decides(self) -> bool:
        """Return whether rounding is to blame, from this state on."""
        return self.fails and self.holds

    @property
    def difference(self) -> int:
        """How many more of the repeats fail as they were than with everything exact."""
        return self.low.failures - self.exact.failures


class Model(Protocol):
    """What a kind of run provides for its diagnosis.

    case       what to diagnose: `failed` (its step in the log), `until`, `longest` (of a window),
               `starts` (steps of states, latest first)
    family     of its units;  units: those that round;  place: where they are, in words
    others     what else to consider, in words;  rule: by what a replay fails, in words
    """

    case: Any
    family: Any
    place: str

    @property
    def units(self) -> frozenset[Any]: ...
    @property
    def others(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def is_random(self) -> bool: ...
    @property
    def same_device(self) -> bool: ...
    def own(self) -> Own: ...
    def failed(self, own: Own) -> int | None:
        """Return the step at which the replayed run failed."""

    def window(self, start: int) -> Any: ...
    def exactly(self, units: frozenset[Any]) -> Any:
        """Return the change that makes units exact."""

    def repair(self, units: frozenset[Any], first: int) -> str:
        """Return a command that continues from step `first` with these units exact."""

    def alike(self, own: Own) -> tuple[int, int]:
        """Return how many numbers of log and replay have the same bits, and how many both have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The results of steps 1 and 2.

    own      the arm's replay;  failed: when it did
    compared, equal   how many numbers both log and replay have, and with the same bits
    sanity   one per state and window that was tried
    replayer that of the last of them, with its shams
    guilty   step 2, None if there was nothing to search for
    """

    model: Any
    cause: Cause
    own: Own
    failed: int | None
    compared: int
    equal: int
    sanity: tuple[Sanity, ...]
    replayer: Replayer
    guilty: Guilty | None
    arm_steps: int
    seconds: float

    @property
    def case(self) -> Any:
        """What was diagnosed."""
        return self.model.case

    @property
    def units(self) -> frozenset[Any]:
        """The events that round."""
        return frozenset(self.model.units)

    @property
    def verdict(self) -> str:
        """The cause, in words."""
        is_known = self.cause in (Cause.ROUNDING, Cause.OTHER)
        return f"{self.cause}{self.model.place if is_known else ''}"

    @property
    def shams(self) -> Outcome:
        """The run as it was with other last bits: sanity arms and shams beside sets."""
        low: Sequence[Fate] = self.sanity[-1].low.fates if self.sanity else ()
        return Outcome(units=frozenset(), fates=(*low, *self.replayer.shams))

    @property
    def p(self) -> float:
        """The probability that the set found survives so much more often than shams by chance."""
        if self.guilty is None or self.guilty.confirmed is None:
            return 1.0
        return better(self.guilty.confirmed.fates, self.shams.fates)

    @property
    def holds(self) -> bool:
        """Return whether the set found survives again and again where shams do not."""
        return self.guilty is not None and self.guilty.holds and self.p < LEVEL


def replayed(model: Model, folder: Path, clock: Clock) -> Replayed:
    """Run steps 1 and 2 of a run that failed; what is done is kept in the folder."""
    began = time.perf_counter()
    clock.says(1, "the run as it was")
    own = model.own()
    failed = model.failed(own)
    tried: list[Sanity] = []
    if model.units and failed is not None:
        tried, replayer = tries(model, Store(folder), clock)
    else:
        window, until = model.window(model.case.starts[0]), model.case.until
        replayer = Replayer(window=window, until=until, store=Store(folder), clock=clock)
    cause = cause_of(failed, tried)
    found = None
    if cause is Cause.ROUNDING:
        steps = f"{replayer.steps} steps from step {replayer.first} on"
        clock.says(2, f"{len(model.units)} events, {steps}")
        how, sanity = (model.family, model.exactly, model.units), tried[-1]
        found = guilty(replayer, *how, sanity.low, sanity.exact, model.is_random)
    equal, compared = model.alike(own)
    return Replayed(
        model=model,
        cause=cause,
        own=own,
        failed=failed,
        compared=compared,
        equal=equal,
        sanity=tuple(tried),
        replayer=replayer,
        guilty=found,
        arm_steps=clock.arm_steps,
        seconds=time.perf_counter() - began,
    )


def tries(model: Model, store: Store, clock: Clock) -> tuple[list[Sanity], Replayer]:
    """Try states and windows until one decides; return each check, and the last's replayer."""
    tried: list[Sanity] = []
    best: tuple[Sanity, Replayer] | None = None
    for until in dict.fromkeys((model.case.until, model.case.longest)):
        for start in model.case.starts:
            clock.says(1, f"from step {start}: as it was, and everything exact")
            replayer = Replayer(window=model.window(start), until=until, store=store, clock=clock)
            tried.append(_sanity(replayer, model))
            if tried[-1].decides and (best is None or tried[-1].difference > best[0].difference):
                best = tried[-1], replayer
            is_old = best is not None and best[0] not in tried[-1 - MORE :]
            if tried[-1].difference == SANITY or is_old:
                break
        if best is not None:
            best[1].recall()
            return [*(s for s in tried if s is not best[0]), best[0]], best[1]
        if not any(s.holds for s in tried):
            break  # exact arithmetic fails too: a longer window changes nothing
    return tried, replayer


def _sanity(replayer: Replayer, model: Model) -> Sanity:
    """Replay the run as it was first: when it fails decides how long the window is."""
    low = tuple(replayer([Trial(replayer.window.as_it_was, r) for r in range(SANITY)]))
    steps = [f.failed for f in low if f.failed is not None]
    if len(steps) == len(low):
        settled = max(SETTLED, SPREADS * (max(steps) - min(steps)))
        replayer.until = min(replayer.until, max(steps) + 1 + settled)
    exact = tuple(replayer([Trial(model.exactly(model.units), r) for r in range(SANITY)]))
    return Sanity(
        first=replayer.first,
        until=replayer.until,
        low=Outcome(units=frozenset(), fates=low),
        exact=Outcome(units=model.units, fates=exact),
    )


def cause_of(failed: int | None, tried: Sequence[Sanity]) -> Cause:
    """Return what the replays say, the last try first."""
    if failed is None:
        return Cause.LOST
    if tried and tried[-1].decides:
        return Cause.ROUNDING
    return Cause.UNDECIDED if any(s.holds for s in tried) else Cause.OTHER


GREW = "growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An arm's failure.

    kind    'not finite', 'rise', 'stay' or 'spike', of the loss above `limit`; or 'growth' of its
            gradient norm
    step    the step from which it counts;  seen: the step at which it was known
    before  a step before it, and before any alarm of loss or gradient norm in the 100 steps ahead
            of it: the damage may be done before the loss shows it
    """

    arm: str
    kind: str
    step: int
    seen: int
    before: int
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """What only a run has.

    arm        its name;  arms: how many the run has
    failure    None if the arm never failed
    grown      the step at which its gradient norm had grown, None without
    last       the step of the last checkpoint
    losses     of the arm, a number for every step
    rule       the sentence that says when an arm has diverged
    rest       the sentence that says what is not replayed in other arithmetic
    step       that of the state which steps 3 to 6 examine
    replayed   steps 1 and 2; None if the run never failed
    survivals  the outcome of replays with a repair, by its name
    rows       `carrier.shares` with the set of step 2 exact, of each layer
    """

    arm: str
    arms: int
    failure: Failure | None
    grown: int | None
    last: int
    losses: Mapping[int, float]
    rule: str
    rest: str
    step: int
    replayed: Replayed | None
    survivals: dict[str, Outcome] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)

    def survival(self, name: str, is_base: bool) -> Outcome | None:
        """Return the outcome of the replays of an arm of step 6; None where there are none."""
        if self.replayed is None:
            return None
        if not is_base:
            return self.survivals.get(name)
        own = Fate(failed=self.replayed.failed, losses=self.replayed.own.losses)
        return Outcome(units=frozenset(), fates=(own,))
