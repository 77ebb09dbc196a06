"""The alarm of a stored run, and how the runs that choose a threshold choose it."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from roundscope.attention.models.alarm import LOOKS, Shares
from roundscope.attention.models.selection import Layer
from roundscope.experiments.results.run import Run
from roundscope.experiments.studies.alarm.conditions import Condition
from roundscope.experiments.studies.alarm.look import COLUMNS

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


def is_warned(run: Run[Condition], threshold: float) -> bool:
    """Return whether a run that diverged had its alarm `LEAD` steps before, or earlier."""
    step = alarm(run, threshold)
    return run.diverged is not None and step is not None and step <= run.diverged - LEAD


def highest(run: Run[Condition]) -> float:
    """Return the largest share at which a run could be warned: of a whole run without divergence.

    NaN where there is none.
    """
    last = math.inf if run.diverged is None else run.diverged - LEAD
    own = [share for step, share in shares(run)[LOOKS - 1 :] if step <= last]
    return max((x for x in own if np.isfinite(x)), default=math.nan)


def separating(runs: Iterable[Run[Condition]]) -> tuple[float, float]:
    """Return the largest share of runs that did not diverge, and the smallest of those that did.

    A threshold between them is right of all these runs, if there is one.
    """
    seen = [(run.diverged is not None, highest(run)) for run in runs]
    quiet = [share for is_lost, share in seen if not is_lost and np.isfinite(share)]
    lost = [share for is_lost, share in seen if is_lost and np.isfinite(share)]
    return max(quiet, default=math.nan), min(lost, default=math.nan)
