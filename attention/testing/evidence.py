"""Evidence from paired differences: a test that may be looked at again and again.

A kernel and a plan run on the same independently drawn heads, and each head gives a difference d of
some error of theirs. If the kernel is as good as the plan, then d is as likely below as above its
margin by the same amount: d - margin is symmetric around 0 or below it. For independent symmetric
x_i, and for any u > 0,

    P(sum x_i >= u sqrt(sum x_i^2)) <= exp(-u^2 / 2),

since the signs are fair coins once the magnitudes are known (Hoeffding's inequality). It needs no
normal distribution and no variance. The bound is never below exp(-n / 2) for n heads, so that too
few heads give no evidence at all. Looks, results and directions share the false-alarm rate equally.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

CLEAR = 3.0  # standard errors below its margin at which a difference is settled


class State(StrEnum):
    """The state of a question: answered by "alarm" or "fine", still "open", or "undefined".

    It is undefined where a number of the results is not finite, so that they have no bias.
    """

    ALARM = "alarm"
    FINE = "fine"
    OPEN = "open"
    UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How clearly differences exceed their margin.

    Attributes:
        mean: The mean difference.
        error: The standard error of the mean.
        chance: A bound of the probability of differences like these, or clearer ones, if the kernel
            is as good as the plan.
        state: The answer.
    """

    mean: float
    error: float
    chance: float
    state: State


def chance(x: np.ndarray) -> float:
    """Return the bound of the probability that symmetric numbers have a sum as large as this."""
    total, size = float(x.sum()), float(np.square(x).sum())
    if total <= 0.0:
        return 1.0
    if not math.isfinite(size):
        return math.exp(-0.5 * x.size)
    return math.exp(-0.5 * total * total / size)


def weigh(d: np.ndarray, margin: float, level: float) -> Evidence:
    """Return the evidence that differences exceed a margin.

    Args:
        d: Differences of independent heads, (n,); NaN where a result has no such error.
        margin: The largest difference that is accepted.
        level: The probability of a false alarm.
    """
    if np.isnan(d).any():
        return Evidence(mean=math.nan, error=math.nan, chance=1.0, state=State.UNDEFINED)
    bound = chance(d - margin)
    with np.errstate(invalid="ignore"):
        mean = float(d.mean())
        spread = float(d.std(ddof=1)) if d.size > 1 else math.inf
    error = spread / math.sqrt(d.size)
    state = State.OPEN
    if bound <= level:
        state = State.ALARM
    elif mean + CLEAR * error <= margin:
        state = State.FINE
    return Evidence(mean=mean, error=error, chance=bound, state=state)


def heads_needed(level: float) -> int:
    """Return the least number of heads that can give an alarm at a level."""
    return math.ceil(-2.0 * math.log(level))
