"""The alarm of drift: rows of dS that do not sum to zero make a part of W_Q's gradient.

    share = sum |R| / sum |dW_Q|   over heads and looks; a look counts 0.9 times the next one

R is the part of a head's dW_Q from those rows (`gpt.monitor`), 0 in exact arithmetic. Sums are
taken since a head whose gradient is small for a while has a large drift that matters little.

Its threshold is a setting (drift_alarm); the default is that of `roundscope.torch.watch`, which
`reproduce alarm` chose and tested. It says that the arithmetic pushes W_Q in a direction that the
loss did not ask for, not that the run will diverge.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.attention.models.alarm import KEPT, LOOKS
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.spikes import Alarm, Watch, watches


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
                where, value = f"layer {layer}, head {head}", float(made / whole)
                found.append(_alarm(step, arm, where, value, self.limit))
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


def _alarm(step: int, arm: int, where: str, value: float, limit: float) -> Alarm:
    return Alarm(step=step, arm=arm, series=where, kind="drift", value=value, limit=limit)
