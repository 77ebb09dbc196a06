"""The diagnosis of a proxy's run as one record: steps 1 to 5, and its verdict."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roundscope.experiments.diagnose.student.blocks import Blocks, origin
from roundscope.experiments.diagnose.student.case import Case, case
from roundscope.experiments.diagnose.student.errors import Error, errors, looked, only
from roundscope.experiments.diagnose.student.repairs import Tried, candidates, plan_with, repairs
from roundscope.experiments.diagnose.student.replay import Student
from roundscope.experiments.diagnose.student.units import Units, by_layer, by_site
from roundscope.experiments.train.student.arms import Plan
from roundscope.tools.diagnose.replay.clock import Clock
from roundscope.tools.diagnose.replay.start import Cause, Replayed, replayed

ALL, SET, REST = "all events", "the set of step 2", "all but the set"
REPAIR = "with "  # before the name of a repair, so that one executable measures all


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of the diagnosis.

    case, replayed   the run, and steps 1 and 2
    steps            the first and last step whose gradients were measured
    errors           by choice of events;  origin: blocks of operands
    tried            the repairs, the run as it was first; empty where there is nothing to repair
    """

    case: Case
    replayed: Replayed
    steps: tuple[int, int]
    errors: dict[str, Error]
    origin: tuple[Blocks, ...]
    tried: tuple[Tried, ...]
    seconds: float

    @property
    def guilty(self) -> Units:
        """The set of step 2, empty without one that holds."""
        g = self.replayed.guilty
        found: Units = g.found if g is not None and self.replayed.holds else frozenset()
        return found


def diagnose(
    folder: Path,
    *,
    arm: str | None,
    first: int | None,
    until: int | None,
    out: Path,
    progress: Callable[[int, str], None],
) -> Found:
    """Return the diagnosis of one run; out: where replays are kept.

    Raises as `student.case.case` does.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    began = time.perf_counter()
    chosen, clock = case(folder, arm=arm, first=first, until=until), Clock(progress)
    done = replayed(Student(case=chosen, clock=clock), out, clock)
    begin = done.replayer.window.begin
    plan, units = chosen.plan(chosen.failed), done.units
    states = looked(chosen, begin) if units else [begin]
    clock.says(3, f"gradients at {len(states)} steps")
    marked: Units = done.guilty.found if done.guilty is not None and done.holds else frozenset()
    picked = choices(plan, units, marked) if units else {}
    texts = candidates(chosen, done) if done.cause is Cause.ROUNDING else {}
    found = (
        errors(
            chosen,
            states,
            picked | {f"{REPAIR}{n}": plan_with(chosen, text) for n, text in texts.items()},
        )
        if units
        else {}
    )
    clock.says(4, "blocks")
    blocks = origin(chosen, states[-1], units, marked)
    clock.says(5, "replays of the repairs")
    left = {n.removeprefix(REPAIR): e for n, e in found.items() if n.startswith(REPAIR)}
    tried = repairs(done, texts, left)
    return Found(
        case=chosen,
        replayed=done,
        steps=(states[0].step, states[-1].step),
        origin=tuple(blocks),
        errors={n: e for n, e in found.items() if not n.startswith(REPAIR)},
        tried=tuple(tried),
        seconds=time.perf_counter() - began,
    )


def choices(plan: Plan, units: Units, marked: Units) -> dict[str, Plan]:
    """Return plans in which some events round while the others are FP32.

    These are all events, the set of step 2 and its complement, those of a layer, each event.
    """
    found = {ALL: units} | (
        {SET: marked, REST: units - marked} if marked and marked != units else {}
    )
    return {
        name: only(plan, own) for name, own in (found | by_layer(units) | by_site(units)).items()
    }
