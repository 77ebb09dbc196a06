"""Records of what a diagnosis has for a training run and not for tensors: how the run failed, and
the outcomes of its replays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from roundscope.tools.diagnose.replay.fate import Outcome
from roundscope.tools.diagnose.replay.start import Replayed

GREW = "growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An arm's failure.

    kind    'not finite', 'rise', 'stay' or 'spike', of the loss above `limit`; or 'growth' of its
            gradient norm
    step    the step from which it counts;  seen: the step at which it was known
    before  a step before it, and before any alarm of loss or gradient norm in the 100 steps ahead
            of it: the damage may be done before the loss shows it
    """

    arm: str
    kind: str
    step: int
    seen: int
    before: int
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """What only a run has.

    arm        its name;  arms: how many the run has
    failure    None if the arm never failed
    grown      the step at which its gradient norm had grown, None without
    last       the step of the last checkpoint
    losses     of the arm, a number for every step
    rule       the sentence that says when an arm has diverged
    rest       the sentence that says what is not replayed in other arithmetic
    step       that of the state which steps 3 to 6 examine
    replayed   steps 1 and 2; None if the run never failed
    survivals  the outcome of replays with a repair, by its name
    rows       `tensors.rows.shares` with the set of step 2 exact, of each layer
    """

    arm: str
    arms: int
    failure: Failure | None
    grown: int | None
    last: int
    losses: Mapping[int, float]
    rule: str
    rest: str
    step: int
    replayed: Replayed | None
    survivals: dict[str, Outcome] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)
