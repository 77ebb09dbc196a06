"""Which events are biased: the statistics of a trace.

Sums are binary64; no number is rounded further.

The null hypothesis: flip the signs of all errors of a row together, by a fair coin per row. The sum
over rows then has mean 0 and variance sum_r s_r^2, where s_r is a row's sum of signed ulps, so
z = sum_r s_r / sqrt(sum_r s_r^2). Errors inside a row may depend on each other in any way. Where
rows share arguments (exp of a BF16 number has few), equal arguments make equal errors, so a coin is
also flipped once per distinct argument. The larger of the two variances counts, but never less than
that of independent events, which is the sum of squares of all errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from roundscope.emu.formats.format import Format
from roundscope.emu.stats.summary import Stats

FALSE_ALARMS = 0.01  # chance that a report without any bias marks something


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """A mean signed error (a bias) and its test against the null hypothesis.

    mean, se  mean and its standard error, per event
    z         the mean in standard deviations of the null hypothesis
    null      the standard deviation of the mean under the null hypothesis
    """

    mean: float
    se: float
    z: float
    null: float


def threshold(tests: int) -> float:
    """Return the |z| that any of `tests` unbiased events exceeds with probability FALSE_ALARMS.

    The correction for the number of tests is Bonferroni's.
    """
    return NormalDist().inv_cdf(1.0 - FALSE_ALARMS / (2 * max(tests, 1)))


def lean(clusters: Sequence[Any], n: int, independent: float = 0.0) -> Lean:
    """Test the mean of n errors against sign flips of clusters of them.

    clusters     for each way to group the events (rows; distinct arguments), the sum of signed
                 errors of each group
    n            the number of events
    independent  the sum of squares of all errors, if known

    z = total / sqrt(max over ways of sum_c s_c^2), which is at most sqrt(groups) by Cauchy-Schwarz.
    The standard error is that of the groups about their mean. A common factor of all errors
    multiplies mean, se and null, and leaves z unchanged.
    """
    groups = [np.asarray(c, dtype=np.float64).reshape(-1) for c in clusters]
    total, n = float(groups[0].sum()), max(n, 1)
    flips = [float(c @ c) for c in groups]
    null = math.sqrt(max(*flips, independent, 0.0))
    centered = max(
        flips[0] - total**2 / max(groups[0].size, 1), independent - total**2 / n, *flips[1:], 0.0
    )
    return Lean(
        mean=total / n,
        se=math.sqrt(centered) / n,
        z=total / null if null > 0.0 else 0.0,
        null=null / n,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the table: a site's counts over all heads, and its bias.

    counts      the counts of the site, by name
    lean        the bias;  by_rows: the bias as flips of rows alone would show it
    distinct    the number of distinct arguments, if they were counted
    leans       whether the event is biased: whether |z| exceeds the threshold
    shared      whether |z| does so by rows only, because equal arguments round alike
    mean_abs    the mean |error| in ulps;  peak: the largest
    worst       the (batch, head) whose mean lies farthest from zero;  worst_mean: that mean
    """

    name: str
    format: Format
    counts: dict[str, float]
    lean: Lean
    by_rows: Lean
    distinct: int | None
    leans: bool
    shared: bool
    mean_abs: float
    peak: float
    worst: tuple[int, int]
    worst_mean: float

    @property
    def relative(self) -> float:
        """The largest relative error that |mean| can be: an ulp of a format is at most epsilon."""
        return abs(self.lean.mean) * self.format.epsilon

    def share(self, name: str) -> float:
        """Return a count as a share of all events."""
        return self.counts[name] / max(self.counts["n"], 1)


def event(
    name: str, f: Format, stats: Stats, rows: np.ndarray, limit: float, distinct: Any = None
) -> Event:
    """Return the line of a site.

    f         the format to which it rounds
    stats     its statistics (batch, heads);  rows: its sums of signed ulps (batch, heads, rows)
    limit     the |z| beyond which it counts as biased
    distinct  (arguments, sums) of `experiments.trace.focus.by_argument`, or None
    """
    total = stats.total()
    n, squares = int(total.n), float(total.sq_ulps)
    by_rows = lean([rows], n, squares)
    both = by_rows if distinct is None else lean([rows, distinct[1]], n, squares)
    means = np.where(stats.n > 0, stats.mean_ulps, 0.0)
    worst = np.unravel_index(int(np.abs(means).argmax()), means.shape)
    return Event(
        name=name,
        format=f,
        counts=total.as_dict(),
        lean=both,
        by_rows=by_rows,
        leans=abs(both.z) > limit,
        shared=abs(by_rows.z) > limit >= abs(both.z),
        distinct=None if distinct is None else int(distinct[0].size),
        mean_abs=float(total.mean_abs_ulps),
        peak=float(total.peak),
        worst=(int(worst[0]), int(worst[1])),
        worst_mean=float(means[worst]),
    )


def head_leans(stats: Stats, rows: np.ndarray, ratio: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean signed ulps and the z of every (batch, head).

    ratio: the factor by which the event's null is wider than that of its rows.
    """
    null = np.sqrt((rows**2).sum(-1))
    null = np.maximum(null, np.sqrt(stats.sq_ulps)) * ratio
    return stats.mean_ulps, rows.sum(-1) / np.where(null > 0.0, null, math.inf)
