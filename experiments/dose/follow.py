"""When an arm has diverged, from its losses as they come."""

import numpy as np

from experiments.train.spikes import WINDOW, Watch

RULE = (
    "An arm has diverged at the first step where its loss is not finite, where the median of its last 100 losses is more than 0.5 nats "
    "above the lowest such median so far, or where 100 losses in a row are spikes (above the median by 8 times the spread)."
)
TAIL = 50  # steps whose mean is the final loss


class Follow:
    """Losses of all arms of a launch. first (arms,): the step of divergence, -1 so far none; it does not change any more."""

    def __init__(self, arms: int) -> None:
        self.watch = Watch("loss", arms)
        self.first = np.full(arms, -1)
        self.tail: list[np.ndarray] = []

    def update(self, step: int, losses: np.ndarray) -> None:
        """The losses (arms,) of a step, one after the other from 0."""
        found = {a.arm: step for a in self.watch.update(step, losses) if a.kind != "spike"}
        # a loss that jumps and stays is no rise: its values never enter the median
        found |= {int(a): step - WINDOW + 1 for a in np.flatnonzero(self.watch.row == WINDOW)}
        for arm, when in found.items():
            if self.first[arm] < 0:
                self.first[arm] = when
        self.tail = [*self.tail[-(TAIL - 1) :], np.asarray(losses, float)]

    def final(self) -> np.ndarray:
        """The mean of the last 50 losses (arms,), NaN where one is not finite."""
        tail = np.stack(self.tail)
        return np.where(np.isfinite(tail).all(0), np.where(np.isfinite(tail), tail, 0.0).mean(0), np.nan)
