"""What came of arms: `Result` of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roundscope.experiments.train.student.arms import EXACT, Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run.

    diverged  the step at which it did (`follow.RULE`), None if it did not;  spikes: how many began
    loss      mean of the last 50 losses, NaN where one is not finite
    curve     (steps done, largest loss since the last entry, gradient norm), every 25 steps
    measures  (steps done, name -> number) of `measure`
    """

    arm: Arm
    steps: int
    diverged: int | None
    spikes: int
    loss: float
    curve: tuple[tuple[int, float, float], ...]
    measures: tuple[tuple[int, Mapping[str, float]], ...] = ()

    def before(self, name: str) -> float:
        """The median of a measure before the run diverged, NaN without any."""
        end = math.inf if self.diverged is None else self.diverged
        found = [own[name] for step, own in self.measures if step <= end and name in own and math.isfinite(own[name])]
        return float(np.median(found)) if found else math.nan


def of_arms(results: Sequence[Result]) -> dict[str, list[Result]]:
    """By name, in their order."""
    found: dict[str, list[Result]] = {}
    for r in results:
        found.setdefault(r.arm.name, []).append(r)
    return found


def when(results: Sequence[Result]) -> str:
    """n of N diverged, and at which steps."""
    steps = sorted(r.diverged for r in results if r.diverged is not None)
    if not steps:
        return f"0 of {len(results)}"
    return f"{len(steps)} of {len(results)}, at {' '.join(map(str, steps[:6]))}{' ...' if len(steps) > 6 else ''}"


def lone(results: Sequence[Result]) -> list[str]:
    """The arms that diverged with a seed with which FP32 at the same rate did not."""
    exact = {(r.arm.seed, r.arm.lr): r.diverged for r in results if r.arm.name == EXACT}
    found = [
        name for name, own in of_arms(results).items()
        if name != EXACT and any(r.diverged is not None and exact.get((r.arm.seed, r.arm.lr), -1) is None for r in own)
    ]  # fmt: skip
    return found
