"""When a training's loss moves, and whether a warning came in time: for alarms that are judged."""

import math
from itertools import pairwise
from typing import Any

from roundscope.tools.results.run import Run

RISE = 0.1  # nats above its own lowest mean of 25 steps at which a loss has moved
LEAD = 50  # steps before its divergence at which a warning counts


def moves(run: Run[Any]) -> int | None:
    """Return the first of 25 steps with a mean loss `RISE` above the lowest so far, or None."""
    lowest = math.inf
    for (before, *_), (_, loss, *_) in pairwise(run.curve):
        if not loss <= lowest + RISE:
            return int(before)
        lowest = min(lowest, loss)
    return None


def is_early(run: Run[Any], step: int | None) -> bool:
    """Return whether a run that diverged was warned, at this step, before its loss moved."""
    moved = moves(run)
    return run.diverged is not None and step is not None and (moved is None or step < moved)


def is_warned(run: Run[Any], step: int | None) -> bool:
    """Return whether a run that diverged was warned `LEAD` steps before, or earlier."""
    return run.diverged is not None and step is not None and step <= run.diverged - LEAD
