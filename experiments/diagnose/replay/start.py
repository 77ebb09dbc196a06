"""Step 1 of a run: it is replayed twice, then with everything exact; with step 2 behind it, what the replays say about the failure."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from roundscope.experiments.diagnose.gpt.case import Case
from roundscope.experiments.diagnose.gpt.replay import Own, Window, judged, replay, window
from roundscope.experiments.diagnose.gpt.units import Units
from roundscope.experiments.diagnose.search.ddmin import Outcome
from roundscope.experiments.diagnose.search.guilty import Guilty, expected, guilty, often
from roundscope.experiments.results.machine import device

SANITY = 4  # repeats of the sanity arms
Report = Callable[[int, str], None]  # (number of the step, what runs)


class Cause(StrEnum):
    """What the replays say about the failure."""

    ROUNDING = "rounding in attention"
    OTHER = "not rounding in attention"
    LUCK = "not decided: the failure hangs on last bits"
    LOST = "not decided: the failure was not replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanity:
    """From one checkpoint: the arm as it was and with everything exact, each several times, with other last bits all but the first."""

    first: int
    low: Outcome
    exact: Outcome

    @property
    def fails(self) -> bool:
        """Whether the arm as it was fails, more often than not."""
        return 2 * self.low.failures > len(self.low.fates)

    @property
    def holds(self) -> bool:
        """Whether the exact one survives, more often than not."""
        return 2 * self.exact.failures < len(self.exact.fates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Steps 1 and 2.

    own      the arm's replay, from the checkpoint that the search started from;  failed: when it did
    again    a second replay gave the same bits;  same_device: the log was written on a device like this one
    compared, equal   steps that both log and replay have, and those with the same bits of the loss
    look     a step before the failure, and the arm's state there;  start: the same at the beginning of the first replay
    sanity   one per checkpoint that was tried, backwards in time;  window: of the last of them
    guilty   step 2, None if there was nothing to search for
    """

    case: Case
    cause: Cause
    own: Own
    failed: int | None
    again: bool
    same_device: bool
    compared: int
    equal: int
    look: tuple[int, Any]
    start: tuple[int, Any]
    sanity: tuple[Sanity, ...]
    window: Window
    guilty: Guilty | None
    arm_steps: int
    seconds: float


class Counter:
    """Arm-steps done, as the progress bar shows them."""

    def __init__(self, report: Report) -> None:
        self.report, self.done, self.step, self.what = report, 0, 1, ""

    def says(self, step: int, what: str) -> None:
        """What runs now."""
        self.step, self.what = step, what
        self(0)

    def __call__(self, more: int) -> None:
        self.done += more
        self.report(self.step, f"{self.what}, {self.done:,} arm-steps done")


def replayed(case: Case, report: Report) -> Replayed:
    """Steps 1 and 2 of a run that failed. Goes back, checkpoint by checkpoint, until the exact arm survives."""
    began, count, units = time.perf_counter(), Counter(report), case.units
    own, again, look = _twice(case, count)
    start_state = (own.first, own.states[own.first])
    tried: list[Sanity] = []
    for start in case.starts:
        own = own if start == own.first else replay(case, start, {start})
        w = window(case, own, start if case.first is None else case.first)
        tried.append(_sanity(w, units, count))
        if tried[-1].holds:
            break
    failed = judged(w, own.losses[w.first - own.first :, None].astype(float))[0]
    cause = _cause(failed, tried[-1])
    if cause is Cause.ROUNDING:
        sets = expected(units)
        count.says(2, f"{len(units)} events, {w.steps} steps a set, about {sets} sets: {sets * w.steps:,} arm-steps to come")
    found = guilty(w, units, tried[-1].low, tried[-1].exact, count) if cause is Cause.ROUNDING else None
    compared = [n for n in range(own.first, case.until) if n in case.losses]
    return Replayed(
        case=case, cause=cause, own=own, failed=failed, again=again, same_device=str(case.about["device"]).startswith(device("xla")),
        compared=len(compared), equal=sum(_same(case.losses[n], own.losses[n - own.first]) for n in compared), look=look, start=start_state,
        sanity=tuple(tried), window=w, guilty=found, arm_steps=count.done,
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def _twice(case: Case, count: Counter) -> tuple[Own, bool, tuple[int, Any]]:
    """The second replay; whether it has the bits of the first; the state to look at."""
    start = case.starts[0]
    count.says(1, f"step {start} to {case.until}, as it was")
    one = replay(case, start)
    look = last_before(case, one)
    two = replay(case, start, {start, start if case.first is None else case.first, look})
    same = np.array_equal(one.losses, two.losses, equal_nan=True) and np.array_equal(one.norms, two.norms, equal_nan=True)
    return two, same, (look, two.states[look])


def last_before(case: Case, own: Own) -> int:
    """The last step before the alarm with a loss that is still below its limit, and a gradient that is finite so far."""
    assert case.failure is not None
    known, norms = (x[: case.failure.seen - own.first] for x in (own.losses, own.norms))
    below = np.flatnonzero(np.logical_and.accumulate(np.isfinite(norms)) & np.isfinite(known) & (known <= case.failure.limit))
    return own.first + int(below[-1]) if below.size else own.first


def _sanity(w: Window, units: Units, count: Counter) -> Sanity:
    count.says(1, f"from step {w.first}: as it was, everything exact")
    low, exact = often(w, [frozenset(), units], range(SANITY), count)
    return Sanity(first=w.first, low=low, exact=exact)


def _cause(failed: int | None, last: Sanity) -> Cause:
    if failed is None:
        return Cause.LOST
    if not last.holds:
        return Cause.OTHER
    return Cause.ROUNDING if last.fails else Cause.LUCK


def _same(logged: float, found: Any) -> bool:
    return logged == float(found) or (math.isnan(logged) and not math.isfinite(float(found)))
