"""When a run of the proxy has diverged, from its losses as they come."""

import math

import numpy as np

from roundscope.experiments.train.spikes import Watch, divergences

TAIL = 50  # steps whose mean is the final loss
LASTING = 20  # steps of a spike at the end of a run that make it a divergence
RULE = (
    "A run has diverged at the first step where its loss is not finite, where the median of its last 100 losses that are no spikes is "
    "more than twice the lowest such median so far, or where a spike begins that lasts 100 steps, or 20 and to the run's end. A spike: "
    "three losses in a row whose logarithm is above the median by 8 times the spread."
)


class Follow:
    """Losses of all arms: `first` (arms,) the step of divergence by RULE, -1 none so far; `spikes` (arms,) how many began."""

    def __init__(self, arms: int) -> None:
        self.watch = Watch("loss", arms, logarithm=True, rise=math.log(2.0))
        self.first, self.spikes = np.full(arms, -1), np.zeros(arms, int)
        self.tail: list[np.ndarray] = []

    def update(self, step: int, losses: np.ndarray) -> None:
        """The losses (arms,) of a step, one after the other from 0."""
        found = self.watch.update(step, losses)
        for alarm in found:
            self.spikes[alarm.arm] += alarm.kind == "spike"
        for arm, when in divergences(found).items():
            if self.first[arm] < 0:
                self.first[arm] = when
        self.tail = [*self.tail[-(TAIL - 1) :], np.asarray(losses, float)]

    def end(self, steps: int) -> None:
        """After the last of `steps` steps: a spike that still lasts is a divergence if it is LASTING steps old."""
        late = (self.first < 0) & (self.watch.row >= LASTING)
        self.first = np.where(late, steps - self.watch.row, self.first)

    def final(self) -> np.ndarray:
        """The mean of the last 50 losses (arms,), NaN where one is not finite."""
        tail = np.stack(self.tail)
        return np.where(np.isfinite(tail).all(0), np.where(np.isfinite(tail), tail, 0.0).mean(0), np.nan)
