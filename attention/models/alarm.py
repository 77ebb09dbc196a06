"""The share of the drift over looks at a training, and the alarms that it and the gain raise.

    share = sum |R| / sum |G|   over heads, layers and looks; a look counts 0.9 times the next one

R and G are those of `attention.models.drift`. Norms are added before they are divided, since a head
whose gradient is small for a while has a large ratio that matters little.

The share says that an arithmetic leaks: that attention pushes W_Q where the loss did not ask it to
go. It does not say which of several seeds of this arithmetic will diverge, or when.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roundscope.attention.models.selection import Layer
from roundscope.emu.numbers import check_real

LOOKS = 3  # looks that there must be before an alarm
KEPT = 0.9  # the factor of the sums from one look to the next
THRESHOLD = 0.1
"""The share at which `watch` raises its alarm, if it is given no other.

The largest of 0.02, 0.05, 0.1, 0.2 and 0.5 at which 40 trainings that chose it were all warned
before their loss moved, if they diverged. How often it is right on other trainings, and what other
thresholds do, is in docs/notes/measurements.md (`roundscope reproduce alarm`).
"""

ACTION = (
    "To keep those sums at 0: correct(model) of roundscope.torch, or corrected(attention) of"
    " roundscope.jax; where attention is emulated, the plan's word delta_from=CENTERED"
    " (docs/howto/bring-your-model.md)"
)
"""What an alarm of the drift advises."""

LONG = 0.01
"""The gain of a layer's output, in size, beyond which `watch` raises its other alarm.

No training chose it: 16-bit outputs that are rounded toward zero are 0.003 too short, and outputs
that are right are within 1e-4.
"""

ACTION_OF_GAIN = (
    "No cure of the drift changes that: capture(model, path) of a step, and roundscope trace or"
    " identify of the file, say which event makes it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """The first look at which the drift was above the threshold, or outputs were too long or short.

    Attributes:
        step: The step of that look, as whoever looked counts steps.
        share: The share of the drift there; of a "gain" the mean gain of the layer's heads.
        threshold: The share that it passed.
        layer: The layer with the largest |R|, or gain.
        head: The head of that layer with the largest |R|, or gain, among those that were looked at.
        kind: "drift", or "gain" for an output that is too long (above 0) or too short.
    """

    step: int
    share: float
    threshold: float
    layer: Layer
    head: int
    kind: Literal["drift", "gain"] = "drift"

    def __str__(self) -> str:
        if self.kind == "gain":
            return (
                f"step {self.step}: the outputs of {self.layer.place}"
                f" are {abs(self.share):.2%} too {'long' if self.share > 0 else 'short'}, more than"
                f" {self.threshold:.0%}, in {LOOKS} looks. {ACTION_OF_GAIN}"
            )
        return (
            f"step {self.step}: rows of dS that do not sum to zero make {self.share:.2g} of the"
            f" queries' gradient, more than {self.threshold:.2g}; most of it in head {self.head} of"
            f" {self.layer.place}. {ACTION}"
        )


class Shares:
    """Follows the drift of one training, look by look, and raises one alarm.

    Attributes:
        threshold: The share above which there is an alarm, or None for no alarm.
        alarm: The `Alarm`, or None so far.
        looks: How many looks there have been, those left out not counted.
    """

    def __init__(self, threshold: float | None = THRESHOLD) -> None:
        if threshold is not None:
            words = f"a share of the gradient above 0, below 1, such as {THRESHOLD}; None for none"
            check_real("threshold", threshold, 0.0, 1.0, words)
        self.threshold, self.looks = threshold, 0
        self.alarm: Alarm | None = None
        self._drift: dict[Layer, list[float]] = {}
        self._gradient: dict[Layer, list[float]] = {}

    def update(
        self, step: int, drift: Mapping[Layer, Any], gradient: Mapping[Layer, Any]
    ) -> Alarm | None:
        """Take one look in, and return the alarm if it begins here, else None.

        A look that is not finite somewhere is left out of the share, and whoever looked says so
        (`attention.models.log.Look.lost`): loss scaling makes such steps, and skips them.

        Args:
            step: The step of the look.
            drift: |R| of each head of each layer: layer -> (N,), the same layers and heads at
                every look.
            gradient: |G|, likewise.
        """
        looks = [{layer: [float(y) for y in x] for layer, x in now.items()}
                 for now in (drift, gradient)]  # fmt: skip
        if not all(math.isfinite(y) for now in looks for x in now.values() for y in x):
            return None
        for sums, now in zip((self._drift, self._gradient), looks, strict=True):
            for layer, x in now.items():
                before = sums.get(layer, [0.0] * len(x))
                sums[layer] = [KEPT * a + b for a, b in zip(before, x, strict=True)]
        self.looks += 1
        if self.threshold is None or self.alarm or self.looks < LOOKS:
            return None
        if not self.share() > self.threshold:
            return None
        worst = max(self._drift, key=lambda layer: max(self._drift[layer]))
        head = self._drift[worst].index(max(self._drift[worst]))
        self.alarm = Alarm(
            step=step, share=self.share(), threshold=self.threshold, layer=worst, head=head
        )
        return self.alarm

    def share(self) -> float:
        """Return the share of the drift over all looks so far, NaN before the first."""
        return share_of(map(sum, self._drift.values()), map(sum, self._gradient.values()))

    def layers(self) -> dict[Layer, float]:
        """Return the share of each layer over all looks so far."""
        return {
            layer: share_of([sum(x)], [sum(self._gradient[layer])])
            for layer, x in self._drift.items()
        }


class Gains:
    """Follows the gain of the outputs, look by look, and raises one alarm.

    It comes where all heads of a layer err the same way, by more than `LONG` in the mean, in
    `LOOKS` looks in a row.
    """

    def __init__(self) -> None:
        self.alarm: Alarm | None = None
        self._passed: dict[Layer, list[float]] = {}

    def update(self, step: int, gains: Mapping[Layer, Sequence[float]]) -> Alarm | None:
        """Take one look in, layer -> gains of its heads; return the alarm if it begins here."""
        for layer, own in gains.items():
            mean = sum(own) / len(own) if own else 0.0
            is_passed = abs(mean) > LONG and all(x * mean > 0 for x in own)
            before = [x for x in self._passed.get(layer, []) if x * mean > 0]
            self._passed[layer] = [*before, mean] if is_passed else []
        worst = max(
            (x for x, own in self._passed.items() if len(own) >= LOOKS),
            key=lambda x: abs(self._passed[x][-1]),
            default=None,
        )
        if self.alarm or worst is None:
            return None
        sizes = [abs(x) for x in gains[worst]]
        self.alarm = Alarm(
            step=step,
            share=self._passed[worst][-1],
            threshold=LONG,
            layer=worst,
            head=sizes.index(max(sizes)),
            kind="gain",
        )
        return self.alarm


def share_of(drift: Iterable[float], gradient: Iterable[float]) -> float:
    """Return the share that drifts have of gradients; NaN where there is no gradient."""
    made, whole = sum(drift), sum(gradient)
    return made / whole if whole else math.nan
