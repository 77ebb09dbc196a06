"""The alarm of drift: heads whose rows of dS do not sum to zero, so that a part of W_Q's gradient
is made by rounding alone.

A heuristic, with a threshold that is a setting (drift_alarm). A head's drift (`gpt.monitor`) is 0
in exact arithmetic. Over the heads of the published failing case it is 2 % of the gradient, and
0.3 % with a plan that never failed (docs/measurements.md). It says that the arithmetic pushes W_Q
in a direction that nothing asked for, not that the run will diverge.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.experiments.train.spikes import Alarm

IN_A_ROW = 3  # monitored steps that a head's drift is above the threshold, one after the other


class DriftWatch:
    """Follows the drift of every head; an arm is told of once, by the head whose drift is then
    largest. limit None: never.
    """

    def __init__(self, shape: tuple[int, int, int], limit: float | None) -> None:
        self.limit = np.inf if limit is None else limit
        self.rows, self.told = np.zeros(shape, int), np.zeros(shape[0], bool)

    def update(self, step: int, arms: Sequence[int], drift: np.ndarray) -> list[Alarm]:
        """What begins at this step; drift (arms, layers, heads), of the arms with these numbers."""
        found = []
        for arm, own in zip(arms, drift, strict=True):
            self.rows[arm] = np.where(own > self.limit, self.rows[arm] + 1, 0)
            lasting = np.where(self.rows[arm] >= IN_A_ROW, own, -np.inf)
            if not self.told[arm] and np.isfinite(lasting).any():
                self.told[arm] = True
                layer, head = np.unravel_index(lasting.argmax(), lasting.shape)
                found.append(
                    _alarm(
                        step,
                        arm,
                        f"layer {layer}, head {head}",
                        float(own[layer, head]),
                        self.limit,
                    )
                )
        return found

    def going_on(self) -> np.ndarray:
        """Arms (arms,) of which there was an alarm."""
        return self.told

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, as JSON knows it."""
        return {"rows": self.rows.tolist(), "told": self.told.tolist()}

    def restore(self, state: dict[str, Any], arms: Sequence[int]) -> None:
        """Goes on from a `state()`; arms: which of its arms each of ours continues."""
        self.rows, self.told = (
            np.array(state["rows"])[list(arms)],
            np.array(state["told"])[list(arms)],
        )


def _alarm(step: int, arm: int, where: str, value: float, limit: float) -> Alarm:
    return Alarm(step=step, arm=arm, series=where, kind="drift", value=value, limit=limit)
