"""The run to diagnose: its folder, the arm that failed and when, and its usable checkpoints."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.errors import unknown
from roundscope.experiments.diagnose.gpt.units import is_random, units_of
from roundscope.experiments.train import checkpoint, record
from roundscope.experiments.train.config import JAX, XLA
from roundscope.experiments.train.groups import plans_at
from roundscope.experiments.train.settings import Arm, Settings, settings_of
from roundscope.experiments.train.spikes import WINDOW, Alarm, growth
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.replay.start import GREW, Failure
from roundscope.tools.errors import UsageError, bad

# steps that a replay goes on after the alarm: with other bits a failure may come later
MARGIN = 100
LONGEST = 5  # margins of the longest window, for failures that come at very different steps
BACK = (12, 25, 50, 100, 200, 400)  # steps before the failure at which replays may begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, one of its arms, and where to replay it.

    failure   None if the arm never failed
    grown     the step at which its gradient norm had grown (`spikes.growth`), None without
    known     steps of usable checkpoints, the last first
    starts    steps from which replays may begin, the latest first: some between a checkpoint and
              the failure, and checkpoints; with --from one only
    first     the step of --from, None if it was left out
    until     the replays' last step, exclusive;  longest: that of the longest
    last      the step of the last checkpoint
    losses, norms   of the arm, from the log, a number for every step (NaN: not finite)
    about     the device and versions of the log
    """

    folder: Path
    settings: Settings
    arm: int
    failure: Failure | None
    grown: int | None
    known: tuple[int, ...]
    starts: tuple[int, ...]
    first: int | None
    until: int
    longest: int
    last: int
    losses: dict[int, float]
    norms: dict[int, float]
    about: dict[str, Any]

    @property
    def own(self) -> Arm:
        """The arm that is diagnosed."""
        return self.settings.arms[self.arm]

    def plans(self, step: int) -> Any:
        """Return the arm's plan per layer and head at a step; not for plan = "jax"."""
        found = plans_at(self.settings, self.own, step)
        assert found is not None
        return found

    @property
    def failed(self) -> int:
        """The step by which replays fail: that of the norm's growth, if it comes first."""
        assert self.failure is not None
        return self.failure.step if self.grown is None else min(self.grown, self.failure.step)

    @property
    def looked(self) -> int:
        """The last step before the failure with a loss below the limit and finite norms."""
        assert self.failure is not None
        first, last = self.known[0], min(self.failure.seen, self.failed + 1)
        steps = [n for n in sorted(self.losses) if first <= n < last]
        lost = next((n for n in steps if not math.isfinite(self.norms[n])), math.inf)
        below = (n for n in steps if n < lost and self.losses[n] <= self.failure.limit)
        return max(below, default=first)

    @property
    def is_random(self) -> bool:
        """Return whether the arm's plan draws random bits."""
        return is_random(self.plans(self.until))

    @property
    def units(self) -> Any:
        """All units that round in some step of the window."""
        steps = {self.known[-1], *(step for step, _ in self.settings.at if step < self.until)}
        return frozenset().union(*(units_of(self.plans(step)) for step in steps))


def case(folder: Path, options: DiagnoseOptions) -> Case:
    """Return what to diagnose; UsageError for a folder without a run, and what the run lacks."""
    arm, first, until = options.arm, options.first, options.until
    known = checkpoint.steps(folder)
    if not (folder / record.NAME).is_file() or not known:
        repair = "give that of a `roundscope train` or `roundscope proxy`, or a file of tensors"
        raise bad("RUN_OR_TENSORS", str(folder), f"is a folder without a run; {repair}")
    settings = settings_of(checkpoint.load(folder)[1])
    if settings.config.plan == JAX:
        why = 'was trained with plan="jax", which has no rounding events'
        raise bad("RUN_OR_TENSORS", str(folder), f"{why}; train with one, such as fp32")
    # the XLA engine has the same bits; fused kernels do not take edited plans as data
    settings = replace(settings, config=replace(settings.config, engine=XLA))
    names = [a.name for a in settings.arms]
    if arm is not None and arm not in names:
        raise UsageError(f"--arm: {unknown('arm', arm, names)}")
    series = {name: _series(folder, name) for name in names if arm in (None, name)}
    failure = _failure(record.rows(folder, "alarms"), series)
    chosen = names.index(failure.arm if failure else arm or names[0])
    losses, norms = series[names[chosen]]
    if not losses:
        repair = f"go on with  roundscope train --resume {folder}"
        raise bad("RUN_OR_TENSORS", str(folder), f"has no step in its log yet; {repair}")
    grown = _grown(norms)
    grown = None if grown is not None and first is not None and first >= grown else grown
    usable = _usable(known, failure, grown, first)
    end = _until(failure, until, usable[0] if first is None else first, known[-1])
    longest, step = end, None
    if failure is not None:
        step = failure.step if grown is None else min(grown, failure.step)
        longest = max(end, failure.seen + LONGEST * MARGIN) if until is None else end
    about = record.last_start(folder)
    return Case(
        folder=folder,
        settings=settings,
        arm=chosen,
        failure=failure,
        grown=grown if failure else None,
        known=usable,
        starts=_starts(usable, step) if first is None else (first,),
        first=first,
        until=end,
        longest=longest,
        last=known[-1],
        losses=losses,
        norms=norms,
        about={name: about[name] for name in ("device", "versions")},
    )


def _series(folder: Path, arm: str) -> tuple[dict[int, float], dict[int, float]]:
    rows = record.rows(folder, "steps", arm)

    def by_step(name: str) -> dict[int, float]:
        return {r["step"]: math.nan if r[name] is None else r[name] for r in rows}

    return by_step("loss"), by_step("gradient_norm")


def _grown(norms: dict[int, float]) -> int | None:
    steps = sorted(norms)
    [found] = growth(np.array([norms[n] for n in steps])[:, None])
    return None if found is None else steps[found]


def _failure(
    rows: list[dict[str, Any]], series: dict[str, tuple[dict[int, float], dict[int, float]]]
) -> Failure | None:
    """Return the first divergence of these arms; without any, the first growth or spike."""
    names = ("step", "series", "kind")
    alarms = [
        (row["arm"], Alarm(**{n: row[n] for n in names}, arm=0, value=0.0, limit=row["bound"]))
        for row in rows
    ]
    losses = [(arm, a) for arm, a in alarms if arm in series and a.series == "loss"]
    diverged = [(a.diverged, arm, a) for arm, a in losses if a.diverged is not None]
    spiked = [(a.step, arm, a) for arm, a in losses]
    steps = {arm: _grown(norms) for arm, (_, norms) in series.items()}
    grown = [(step, arm) for arm, step in steps.items() if step is not None]
    if grown and not diverged:
        step, arm = min(grown)
        before, kind, seen, limit = step - WINDOW, GREW, step, math.inf
    elif diverged or spiked:
        step, arm, alarm = min(diverged or spiked, key=lambda x: x[:2])
        near = [a for own, a in alarms if own == arm and step - WINDOW <= a.step <= alarm.step]
        before, kind = min(a.step - a.delay for a in near), alarm.kind
        seen, limit = alarm.step, alarm.limit
    else:
        return None
    return Failure(arm=arm, kind=kind, step=step, seen=seen, before=max(0, before), limit=limit)


def _usable(
    known: list[int], failure: Failure | None, grown: int | None, first: int | None
) -> tuple[int, ...]:
    """Return the steps of checkpoints from which the failure can be replayed, the last first."""
    if first is not None:
        before = [s for s in known if s <= first]
        if not before:
            has = f"the run has checkpoints of steps {' '.join(map(str, known))}"
            raise bad("--from", first, f"{has}; give a step from {known[0]} on")
        return (before[-1],)
    if failure is None:
        return (known[-1],)
    last = failure.before if grown is None else min(failure.before, max(grown - WINDOW, 0))
    before = [s for s in known if s <= last]
    if not before:
        late = f"failed at step {failure.step}, and the first checkpoint is of step {known[0]}"
        repair = f"{late}: train it again with a smaller checkpoint_every"
        raise bad("RUN_OR_TENSORS", failure.arm, repair)
    return tuple(reversed(before))


def _starts(usable: tuple[int, ...], failed: int | None) -> tuple[int, ...]:
    """Return steps between the last checkpoint and the failure, then earlier checkpoints."""
    if failed is None:
        return usable[:1]
    steps = [failed - back for back in BACK if failed - back > usable[0]]
    for step in usable:
        at_end = not steps or step in (usable[0], usable[-1])
        if at_end or failed - step >= 2 * (failed - steps[-1]):
            steps.append(step)
    return tuple(steps)


def _until(failure: Failure | None, until: int | None, first: int, last: int) -> int:
    if failure is not None and first > failure.step:
        raise bad("--from", first, f"the run fails at step {failure.step}; give a step before it")
    end = until if until is not None else failure.seen + MARGIN if failure else max(last, first + 1)
    if end <= (failure.seen if failure else first):
        repair = f"give a step after {first}"
        if failure:
            repair = f"the failure is known at step {failure.seen}; give a later one"
        raise bad("--until", end, repair)
    return end
