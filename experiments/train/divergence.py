"""Decides when arms have diverged, from their losses as they come.

`LOSS` is the rule for a loss in nats.
"""

from dataclasses import dataclass

import numpy as np

from roundscope.experiments.train.spikes import RISE, Watch, divergences

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
        return np.where(
            np.isfinite(tail).all(0), np.where(np.isfinite(tail), tail, 0.0).mean(0), np.nan
        )


def followed(losses: np.ndarray, rule: Rule = LOSS) -> Follow:
    """Return the `Follow` of a whole run, from its losses (steps, arms) from step 0."""
    follow = Follow(losses.shape[1], rule)
    follow.add(len(losses), losses)
    follow.end(len(losses))
    return follow
