"""When a training run goes wrong: spikes and rises of a series, values not finite, and drift.

w      the last 100 values that were no spike, at least 20;  m = median(w);
       s = max(1.4826 median|w - m|, 0.005 |m|)
spike  x > m + 8 s, three steps in a row. It ends with the first value below
rise   m > (lowest m so far) + 0.5, for losses, in nats
stay   a spike of the loss that does not end: of its steps each x > m + 8 s counts 1 and each below
       takes 3 away again, up to 100
growth of gradient norms: the median of the last 20 > 10 times the lowest such median so far

A loss has diverged with its first rise, stay or value that is not finite, and none of them ends.

The median and the spread about it do not change when a spike enters; a loss that falls makes the
rule late, never early. Gradient norms are judged by their logarithm, since their spread grows with
their size. The rule depends on no paper: neither on what makes a loss rise nor on how high. For
independent noise with the tails of Student's t with 3 degrees of freedom, a value is above m + 8 s
with probability 0.0014, three in a row once in 10^8 steps.

drift  rows of dS that do not sum to zero make a part of W_Q's gradient:

           share = sum |R| / sum |dW_Q|   over heads and looks; a look counts 0.9 times the next

       R is the part of a head's dW_Q from those rows (`gpt.monitor`), 0 in exact arithmetic. Sums
       are taken since a head whose gradient is small for a while has a large drift that matters
       little. The threshold is a setting (drift_alarm); the default is that of
       `roundscope.torch.watch`, which `reproduce alarm` chose and tested. It says that the
       arithmetic pushes W_Q in a direction that the loss did not ask for, not that the run will
       diverge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.attention.models.alarm import KEPT, LOOKS
from roundscope.experiments.train.config import Config

WINDOW, LEAST, FACTOR, IN_A_ROW, RISE = 100, 20, 8.0, 3, 0.5
RECENT = 20  # steps of a median of gradient norms
GROWTH = 10.0  # how many times the lowest such median so far it must be
DELAYS = {"not finite": 1, "spike": IN_A_ROW, "rise": WINDOW, "stay": WINDOW, "growth": RECENT}
DELAYS["drift"] = 0
BELOW = 3  # high values that one below takes away: a stay has at most one of these in four
RULE = (
    "An arm has diverged at the first step where its loss is not finite, where the median of its"
    " last 100 losses that are no spikes is more than 0.5 nats above the lowest such median so far,"
    " or where a spike (above that median by 8 times the spread) begins that lasts 100 steps."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An event at a step in one series of arm number `arm`.

    kind    'not finite', or a 'spike', 'rise', 'stay', 'growth' or 'drift' above `limit`
    value   that of the series at the step
    """

    step: int
    arm: int
    series: str
    kind: str
    value: float
    limit: float

    @property
    def delay(self) -> int:
        """The number of steps by which an alarm may come after what it reports."""
        return DELAYS[self.kind]

    @property
    def diverged(self) -> int | None:
        """The step of divergence, for a stay 99 steps earlier; None for other alarms."""
        if self.series != "loss" or self.kind == "spike":
            return None
        return self.step - WINDOW + 1 if self.kind == "stay" else self.step


class Watch:
    """Follows one series of every arm.

    It keeps the accepted values and their number, the number of high ones in a row, how long they
    stayed high, the lowest median, and which alarms have not ended; for growth it keeps the last
    values of all, and the lowest median of such. growth: by how much that median may rise above it.
    """

    def __init__(
        self,
        series: str,
        arms: int,
        *,
        logarithm: bool = False,
        rise: float = RISE,
        growth: float = np.inf,
    ) -> None:
        self.series, self.logarithm, self.rise, self.growth = series, logarithm, rise, growth
        self.recent, self.least = np.full((RECENT, arms), np.nan), np.full(arms, np.inf)
        self.grown = np.zeros(arms, bool)
        self.values = np.full((WINDOW, arms), np.nan)
        self.count, self.row, self.stayed = (np.zeros(arms, int) for _ in range(3))
        self.lowest = np.full(arms, np.nan)
        self.risen, self.lost = np.zeros(arms, bool), np.zeros(arms, bool)

    def update(self, step: int, values: np.ndarray) -> list[Alarm]:
        """Return the alarms that begin at this step; values (arms,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.log(values) if self.logarithm else np.asarray(values, float)
        x = np.where(np.isneginf(x), -700.0, x)  # a gradient of 0
        middle, limit = self._limits()
        finite = np.isfinite(x)
        high = finite & (self.count >= LEAST) & (x > limit)
        self.row = np.where(high, self.row + 1, 0)
        self.stayed = np.clip(self.stayed + np.where(high, 1, -BELOW), 0, WINDOW)
        # not for norms: one that stays higher is no divergence
        staying = (self.stayed == WINDOW) & ~self.risen & np.isfinite(self.rise)
        rising = (self.count >= WINDOW) & (middle > self.lowest + self.rise) & ~self.risen
        self.lowest = np.where(self.count >= WINDOW, np.fmin(self.lowest, middle), self.lowest)
        kinds = (
            ("not finite", ~finite & ~self.lost, np.full(x.shape, np.inf)),
            ("spike", self.row == IN_A_ROW, limit),
            ("rise", rising, self.lowest + self.rise),
            ("stay", staying, limit),
        )
        alarms = [alarm for kind in kinds for alarm in self._alarms(step, values, *kind)]
        alarms += self._growing(step, x, values)
        self.risen, self.lost = self.risen | rising | staying, self.lost | ~finite
        accepted = np.flatnonzero(finite & ~high)
        self.values[self.count[accepted] % WINDOW, accepted] = x[accepted]
        self.count[accepted] += 1
        return alarms

    def going_on(self) -> np.ndarray:
        """Return which arms (arms,) have an alarm that has not ended."""
        return np.asarray(self.risen | self.lost | self.grown | (self.row >= IN_A_ROW))

    def _growing(self, step: int, x: np.ndarray, values: np.ndarray) -> list[Alarm]:
        if np.isinf(self.growth):
            return []
        self.recent = np.concatenate([self.recent[1:], np.where(np.isfinite(x), x, np.nan)[None]])
        middle = np.median(self.recent, axis=0)  # NaN until there are RECENT values
        growing = (middle > self.least + self.growth) & ~self.grown
        found = self._alarms(step, values, "growth", growing, self.least + self.growth)
        self.grown, self.least = self.grown | growing, np.fmin(self.least, middle)
        return found

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        # zeros for an arm without values, whose limits nothing uses
        values = np.where(self.count > 0, self.values, 0.0)
        middle = np.nanmedian(values, axis=0)
        spread = 1.4826 * np.nanmedian(np.abs(values - middle), axis=0)
        return middle, middle + FACTOR * np.maximum(spread, 0.005 * np.abs(middle))

    def _alarms(
        self, step: int, values: np.ndarray, kind: str, where: np.ndarray, limits: np.ndarray
    ) -> list[Alarm]:
        """Return the alarms of a kind, of the arms where it begins."""
        found = []
        for arm in np.flatnonzero(where).tolist():
            limit = float(np.exp(limits[arm]) if self.logarithm else limits[arm])
            own: dict[str, Any] = {"series": self.series, "kind": kind, "limit": limit}
            found.append(Alarm(step=step, arm=arm, value=float(values[arm]), **own))
        return found

    def state(self) -> dict[str, Any]:
        """Return all that the next update depends on, as types of JSON."""
        of_growth = () if np.isinf(self.growth) else ("recent", "least", "grown")
        names = ("values", "count", "row", "stayed", "lowest", "risen", "lost", *of_growth)
        return {name: [_written(v) for v in getattr(self, name).ravel().tolist()] for name in names}

    def restore(self, state: dict[str, Any], arms: Sequence[int]) -> None:
        """Continue from a `state()`, or an old and shorter one; arms: those there of ours."""
        for name, kept in state.items():
            if name not in self.state():
                raise ValueError(f"the alarm of the {self.series} has no {name}")
            own = getattr(self, name)
            numbers = [np.nan if v is None else float(v) for v in kept]
            whole = np.array(numbers).reshape(-1, len(state["count"]))
            setattr(self, name, whole[:, list(arms)].reshape(own.shape).astype(own.dtype))


def _written(value: Any) -> Any:
    """Return a number as JSON has it: None for NaN, "inf" for infinity."""
    return None if value != value else str(value) if value in (np.inf, -np.inf) else value


def watches(arms: int) -> tuple[Watch, Watch]:
    """Return the watches of the loss and of the gradient norm."""
    return Watch("loss", arms), Watch(
        "gradient norm", arms, logarithm=True, rise=np.inf, growth=float(np.log(GROWTH))
    )


def divergences(found: Sequence[Alarm]) -> dict[int, int]:
    """Return arm -> the step at which it diverged by `RULE`, from one step's alarms."""
    steps = sorted((a.diverged, a.arm) for a in found if a.diverged is not None)
    return {arm: step for step, arm in reversed(steps)}  # the earliest of an arm is written last


def growth(norms: np.ndarray) -> list[int | None]:
    """Return the first step of each arm at which its gradient norms have grown for good, or None.

    norms are (steps, arms) from step 0. The step is where the median of the last 20 is more than 10
    times the lowest such median before. A norm that is not finite counts as infinitely large.
    Growth may come a hundred steps before the loss shows anything; it is no divergence, for a norm
    can shrink again.
    """
    if len(norms) <= RECENT:
        return [None] * norms.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(
        np.where(np.isfinite(norms), norms, np.inf), RECENT, axis=0
    )
    medians = np.median(windows, axis=-1)
    grown = medians[1:] > GROWTH * np.minimum.accumulate(medians)[:-1]
    return [int(arm.argmax()) + RECENT if arm.any() else None for arm in grown.T]


TAIL = 50  # steps whose mean is the final loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What counts as divergence.

    rise       the lasting rise of the median of the loss (or of its logarithm) that counts
    logarithm  whether the loss's logarithm is followed
    lasting    steps of a spike that lasts to the end of a run; None: only the rule's usual 100
    """

    rise: float = RISE
    logarithm: bool = False
    lasting: int | None = None


LOSS = Rule()


class Follow:
    """Follows the losses of all arms of a launch.

    first (arms,)   the step of divergence, -1 for none so far; once set it never changes
    spikes (arms,)  the number of spikes that began
    """

    def __init__(self, arms: int, rule: Rule = LOSS) -> None:
        self.rule = rule
        self.watch = Watch("loss", arms, logarithm=rule.logarithm, rise=rule.rise)
        self.first, self.spikes = np.full(arms, -1), np.zeros(arms, int)
        self.tail: list[np.ndarray] = []

    def update(self, step: int, losses: np.ndarray) -> None:
        """Take the losses (arms,) of a step; steps come one after the other from 0."""
        found = self.watch.update(step, losses)
        for alarm in found:
            self.spikes[alarm.arm] += alarm.kind == "spike"
        for arm, when in divergences(found).items():
            if self.first[arm] < 0:
                self.first[arm] = when
        self.tail = [*self.tail[-(TAIL - 1) :], np.asarray(losses, float)]

    def add(self, done: int, losses: np.ndarray) -> None:
        """Take the losses (steps, arms) of the last steps of `done`, as in a block of `loop`."""
        for number, row in enumerate(losses, done - len(losses)):
            self.update(number, row)

    def end(self, steps: int) -> None:
        """Finish after `steps` steps: a spike that still lasts may be a divergence."""
        if self.rule.lasting is not None:
            late = (self.first < 0) & (self.watch.row >= self.rule.lasting)
            self.first = np.where(late, steps - self.watch.row, self.first)

    def diverged(self) -> list[int | None]:
        """Return the step of divergence of each arm, None without."""
        return [None if step < 0 else int(step) for step in self.first]

    def final(self) -> np.ndarray:
        """Return the mean of the last 50 losses (arms,), NaN where one of them is not finite."""
        tail = np.stack(self.tail)
        finite = np.isfinite(tail)
        return np.where(finite.all(0), np.where(finite, tail, 0.0).mean(0), np.nan)


def followed(losses: np.ndarray, rule: Rule = LOSS) -> Follow:
    """Return the `Follow` of a whole run, from its losses (steps, arms) from step 0."""
    follow = Follow(losses.shape[1], rule)
    follow.add(len(losses), losses)
    follow.end(len(losses))
    return follow


class DriftWatch:
    """Follows the share of every arm; each arm has one alarm, for the head with the largest |R|.

    shape   arms, layers, heads;  limit: of the share, None for no alarm
    """

    def __init__(self, shape: tuple[int, int, int], limit: float | None) -> None:
        self.limit = np.inf if limit is None else limit
        self.made, self.whole = np.zeros(shape), np.zeros(shape)
        self.looks, self.told = np.zeros(shape[0], int), np.zeros(shape[0], bool)

    def update(
        self, step: int, arms: Sequence[int], drift: np.ndarray, gradient: np.ndarray
    ) -> list[Alarm]:
        """Return the alarms that begin at this step, of the arms with these numbers.

        drift, gradient (arms, layers, heads): |R| / |dW_Q| and |dW_Q|. A look that is not finite
        anywhere in an arm is left out.
        """
        found = []
        for arm, share, size in zip(arms, drift, gradient, strict=True):
            if not (np.isfinite(share).all() and np.isfinite(size).all()):
                continue
            self.made[arm] = KEPT * self.made[arm] + share * size
            self.whole[arm] = KEPT * self.whole[arm] + size
            self.looks[arm] += 1
            made, whole = self.made[arm].sum(), self.whole[arm].sum()
            if self.looks[arm] >= LOOKS and made > self.limit * whole and not self.told[arm]:
                self.told[arm] = True
                layer, head = np.unravel_index(self.made[arm].argmax(), share.shape)
                where = f"layer {layer}, head {head}"
                own: dict[str, Any] = {"series": where, "kind": "drift", "limit": self.limit}
                found.append(Alarm(step=step, arm=arm, value=float(made / whole), **own))
        return found

    def going_on(self) -> np.ndarray:
        """Return which arms (arms,) had an alarm."""
        return self.told

    def state(self) -> dict[str, Any]:
        """Return all that the next update depends on, as types of JSON."""
        return {name: getattr(self, name).tolist() for name in ("made", "whole", "looks", "told")}

    def restore(self, state: dict[str, Any], arms: Sequence[int]) -> None:
        """Continue from a `state()`; arms: which of its arms each of ours continues."""
        for name, kept in state.items():
            if name not in self.state():
                raise ValueError(f"the alarm of drift has no {name}")
            own = getattr(self, name)
            setattr(self, name, np.array(kept, own.dtype)[list(arms)].reshape(own.shape))


def watches_of(c: Config, arms: int) -> tuple[Watch, Watch, DriftWatch]:
    """Return the watches of a run of some arms, in the order in which a checkpoint has them."""
    return (*watches(arms), DriftWatch((arms, c.layers, c.heads), c.drift_alarm))
