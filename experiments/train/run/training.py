"""A training run in its folder: steps, monitors, the spike rule, checkpoints, the log.

It is deterministic to the bit. Losses stay on the device until the next monitor or checkpoint, so
that no step waits for the one before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.experiments.train import checkpoint, step
from roundscope.experiments.train.gpt import monitor
from roundscope.experiments.train.gpt.monitor import MEASURED, coherence
from roundscope.experiments.train.groups import batches_of, groups, together
from roundscope.experiments.train.record import Log
from roundscope.experiments.train.settings import Settings, meta_of
from roundscope.experiments.train.spikes import Alarm, watches_of
from roundscope.tools.report.progress import Pace

Row = dict[str, Any]
Running = dict[tuple[str, int, int], tuple[float, float]]


def step_rows(
    names: Sequence[str], step: int, losses: np.ndarray, norms: np.ndarray, rates: np.ndarray
) -> list[Row]:
    """Return rows of `steps`, one per arm."""
    columns = zip(names, losses.tolist(), norms.tolist(), rates.tolist(), strict=True)
    return [
        {"arm": name, "step": step, "loss": loss, "gradient_norm": norm, "lr": lr}
        for name, loss, norm, lr in columns
    ]


def alarm_rows(names: Sequence[str], found: Sequence[Alarm]) -> list[Row]:
    """Return rows of `alarms`."""
    own = ("step", "series", "kind", "value")
    return [
        {"arm": names[a.arm], **{name: getattr(a, name) for name in own}, "bound": a.limit}
        for a in found
    ]


def head_rows(
    names: Sequence[str], step: int, found: dict[str, np.ndarray], running: Running
) -> list[Row]:
    """Return rows of `heads`, one per arm, layer and head; the sums in `running` are updated."""
    rows = []
    for arm, layer, head in np.ndindex(found["w_q_norm"].shape):
        at = (arm, layer, head)
        row: Row = {"arm": names[arm], "step": step, "layer": layer, "head": head, "gaps": None}
        row |= {name: float(found[name][at]) if name in found else None for name in MEASURED}
        total = square = None
        if "gaps" in found:
            before = running.get((names[arm], layer, head), (0.0, 0.0))
            total, square = before[0] + row["delta_sum"], before[1] + row["delta_square"]
            running[names[arm], layer, head] = total, square
            row["gaps"] = str(found["gaps"][at].tolist())
        row |= {"coherence": _coherence(row["delta_sum"], row["delta_square"])}
        rows.append(row | {"running_sum": total, "running_coherence": _coherence(total, square)})
    return rows


def site_rows(
    names: Sequence[str], step: int, found: Sequence[dict[str, tuple[float, float]]]
) -> list[Row]:
    """Return rows of `sites`, one per arm and event."""
    return [
        {"arm": name, "step": step, "site": site, "mean_ulps": mean, "mean_abs_ulps": absolute}
        for name, events in zip(names, found, strict=True)
        for site, (mean, absolute) in events.items()
    ]


def _coherence(total: float | None, square: float | None) -> float | None:
    return None if total is None or square is None else float(coherence(total, square))


LONG = 100  # steps that gain more than a step with its plan as part of it takes to compile


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The progress of a run.

    step, steps   steps done, and of how many;  rate: steps per second
    arms          per arm its name, last loss, learning rate, and whether it has an alarm now
    """

    step: int
    steps: int
    rate: float
    arms: tuple[tuple[str, float, float, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a run begins.

    step, state   the state of all its arms at a step
    watch         what the spike rule had kept;  arms: which arm there each of ours continues
    """

    step: int
    state: Any
    watch: Sequence[Any] = ()
    arms: Sequence[int] = ()


class Run:
    """A run in progress from `begin.step` on, in a folder, with a log."""

    def __init__(self, settings: Settings, folder: Path, log: Log, begin: Beginning) -> None:
        self.settings, self.folder, self.log, self.number = settings, folder, log, begin.step
        self.names = [arm.name for arm in settings.arms]
        # of the whole run, so that one that goes on does the steps that it would have done
        self.groups = groups(settings, begin.state, is_long=settings.config.steps >= LONG)
        self.batches = batches_of(settings)
        arms = len(self.names)
        self.watches = loss, norm, self.drift = watches_of(settings.config, arms)
        self.series = loss, norm
        own: Any
        for own, kept in zip(self.watches, begin.watch, strict=False):  # an older run kept fewer
            own.restore(kept, begin.arms)
        self.running = log.running()
        self.waiting: list[tuple[int, list[Any]]] = []  # steps whose losses are still on the device
        self.losses, self.pace = np.full(arms, np.nan), Pace()

    def go(self, show: Callable[[View], None], stop: Callable[[], bool]) -> bool:
        """Do every step unless `stop()`, then write a checkpoint; return whether the end came."""
        c, first = self.settings.config, self.number
        while self.number < c.steps and not stop():
            if self.number % c.checkpoint_every == 0 and self.number != first:
                self.save()
            batches = {seed: b.batch(self.number) for seed, b in self.batches.items()}
            if self.number % c.monitor_every == 0:
                self._monitor(batches)
                show(self._view())
            self.waiting.append(
                (self.number, [group.advance(self.number, batches) for group in self.groups])
            )
            self.number += 1
            if self.number == first + 1:
                jax.block_until_ready(self.waiting)
                self.pace.mark(self.number)
        self.save()
        show(self._view())
        return self.number >= c.steps

    def save(self, pinned: str = "") -> None:
        """Write the log, then a checkpoint of this step; pinned: why it is never deleted."""
        self._flush()
        self.log.commit()
        about = next(iter(self.batches.values())).about
        meta = meta_of(self.settings) | {"data": about}
        meta |= {"watch": [watch.state() for watch in self.watches]}
        meta |= {"pinned": pinned} if pinned else {}
        keep = self.settings.config.keep
        checkpoint.save(self.folder, self.number, together(self.groups), meta, keep=keep)

    def _flush(self) -> None:
        """Fetch losses and norms since the last time, for the log and the spike rule."""
        waiting, self.waiting = jax.device_get(self.waiting), []
        if not waiting:
            return
        order = [a for group in self.groups for a in group.arms]
        rates = self._rates([number for number, _ in waiting])
        for (number, seen), rate in zip(waiting, rates, strict=True):
            losses, norms = np.empty(len(order)), np.empty(len(order))
            losses[order], norms[order] = map(np.concatenate, zip(*seen, strict=True))
            self.log.add("steps", step_rows(self.names, number, losses, norms, rate))
            loss, norm = self.series
            alarms = [*loss.update(number, losses), *norm.update(number, norms)]
            self.log.add("alarms", alarm_rows(self.names, alarms))
            self._pin(alarms)
            self.losses = losses

    def _pin(self, alarms: Sequence[Alarm]) -> None:
        """Keep the checkpoints before the first alarms: a diagnosis starts from there."""
        for alarm in alarms:
            before = [s for s in checkpoint.steps(self.folder) if s <= alarm.step - alarm.delay]
            if before:
                what = f"{alarm.kind} of {alarm.series} of {self.names[alarm.arm]}"
                reason, most = f"before {what} at step {alarm.step}", self.settings.config.keep
                checkpoint.pin(self.folder, before[-1], reason, most)

    def _monitor(self, batches: dict[int, np.ndarray]) -> None:
        self._flush()
        c, number = self.settings.config, self.number
        turn, rest = divmod(number // c.monitor_every, monitor.SITES_EVERY)
        for group in self.groups:
            tables, plans = group.plans(number)
            names = [self.names[a] for a in group.arms]
            tokens = group.own(batches)[..., :1, :]
            data = group.state.params, tables, group.offset(number), group.linears(number)
            params, tables, offset, linears = group.place.alone(data)
            sole, bits = group.sole(number), number * (c.parts or 1)  # those of the first part
            found, seen = monitor.look(c, params, tokens, tables, bits, offset, linears, sole)
            self.log.add("heads", head_rows(names, number, found, self.running))
            if "drift" in found:
                drift, gradient = found["drift"], found["w_q_gradient"]
                drifting = self.drift.update(number, group.arms, drift, gradient)
                self.log.add("alarms", alarm_rows(self.names, drifting))
            if seen is not None and rest == 0:
                means = monitor.sites(c, seen, plans, turn, group.fused(number))
                self.log.add("sites", site_rows(names, number, means))
        self.log.commit()

    def _view(self) -> View:
        if self.number > self.pace.last:
            self.pace.mark(self.number)
        going = np.any([watch.going_on() for watch in self.watches], axis=0)
        series = self.losses, self._rates([self.number])[0], going
        arms = zip(self.names, *(x.tolist() for x in series), strict=True)
        steps = self.settings.config.steps
        return View(step=self.number, steps=steps, rate=self.pace.rate, arms=tuple(arms))

    def _rates(self, numbers: Sequence[int]) -> np.ndarray:
        """Return the learning rates (steps, arms) of some steps."""
        at = jnp.asarray(numbers, jnp.int32)
        shares = step.rate(self.settings.config, at, jnp.float32(1.0))
        return np.outer(shares, [arm.lr for arm in self.settings.arms])
