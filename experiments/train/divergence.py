"""When an arm has diverged, from its losses as they come."""

import numpy as np

from roundscope.experiments.train.spikes import Watch, divergences

TAIL = 50  # steps whose mean is the final loss


class Follow:
    """Losses of all arms of a launch. first (arms,): the step of divergence by `spikes.RULE`, -1 so far none; it never changes again."""

    def __init__(self, arms: int) -> None:
        self.watch = Watch("loss", arms)
        self.first = np.full(arms, -1)
        self.tail: list[np.ndarray] = []

    def update(self, step: int, losses: np.ndarray) -> None:
        """The losses (arms,) of a step, one after the other from 0."""
        for arm, when in divergences(self.watch.update(step, losses)).items():
            if self.first[arm] < 0:
                self.first[arm] = when
        self.tail = [*self.tail[-(TAIL - 1) :], np.asarray(losses, float)]

    def final(self) -> np.ndarray:
        """The mean of the last 50 losses (arms,), NaN where one is not finite."""
        tail = np.stack(self.tail)
        return np.where(np.isfinite(tail).all(0), np.where(np.isfinite(tail), tail, 0.0).mean(0), np.nan)
