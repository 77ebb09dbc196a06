"""The alarm of a stored run, and how the runs that choose a threshold choose it."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from roundscope.attention.models.alarm import LOOKS, Shares
from roundscope.attention.models.selection import Layer
from roundscope.experiments.questions.alarm.conditions import Condition
from roundscope.experiments.questions.alarm.look import COLUMNS
from roundscope.tools.results.run import Run

GRID = (0.02, 0.05, 0.1, 0.2, 0.5)  # the thresholds from which one is chosen
RISE = 0.1  # nats above its own lowest mean of 25 steps at which a loss has moved
LEAD = 50  # steps before its divergence at which a warning counts
MODEL = Layer(name="model", number=0)  # sums over layers and heads are kept as one
Runs = Sequence[Run[Condition]]


def shares(run: Run[Condition]) -> list[tuple[int, float]]:
    """Return (step, share of the drift over looks so far) of every look at a run.

    They are those of `roundscope.attention.models.alarm`, from the sums that were stored.
    """
    watch, found = Shares(threshold=None), []
    made, whole = (2 + COLUMNS.index(name) for name in ("made", "whole"))
    for point in run.curve:
        watch.update(int(point[0]), {MODEL: [point[made]]}, {MODEL: [point[whole]]})
        found.append((int(point[0]), watch.share()))
    return found


def alarm(run: Run[Condition], threshold: float) -> int | None:
    """Return the step of a run's alarm, None without."""
    above = (step for step, share in shares(run)[LOOKS - 1 :] if share > threshold)
    return next(above, None)


def moves(run: Run[Condition]) -> int | None:
    """Return the first of the 25 steps whose mean loss is `RISE` above the lowest such mean so far.

    None where there are none. It is what a person sees who looks at the loss of this run alone.
    """
    lowest = math.inf
    for (before, *_), (_, loss, *_) in pairwise(run.curve):
        if not loss <= lowest + RISE:
            return int(before)
        lowest = min(lowest, loss)
    return None


def is_early(run: Run[Condition], threshold: float) -> bool:
    """Return whether a run that diverged had its alarm before its loss moved."""
    step, moved = alarm(run, threshold), moves(run)
    return run.diverged is not None and step is not None and (moved is None or step < moved)


def is_warned(run: Run[Condition], threshold: float) -> bool:
    """Return whether a run that diverged had its alarm `LEAD` steps before, or earlier."""
    step = alarm(run, threshold)
    return run.diverged is not None and step is not None and step <= run.diverged - LEAD


def highest(run: Run[Condition]) -> float:
    """Return the largest share before a run's loss moved: of a whole run without divergence.

    NaN where there is none.
    """
    moved = moves(run) if run.diverged is not None else None
    last = math.inf if moved is None else moved - 1
    own = [share for step, share in shares(run)[LOOKS - 1 :] if step <= last]
    return max((x for x in own if np.isfinite(x)), default=math.nan)


def right(runs: Runs) -> float | None:
    """Return the largest threshold of `GRID` that warns every run that diverged before its loss
    moved; None if none does.
    """
    lost = [run for run in runs if run.diverged is not None]
    good = [x for x in GRID if lost and all(is_early(run, x) for run in lost)]
    return max(good, default=None)
