"""Which events are biased: the statistics of a trace.

Sums are binary64; no number is rounded further.

Two questions are asked of every event: are its errors biased up or down, and are they biased away
from zero or toward it? Truncation of numbers of both signs answers no to the first and yes to the
second. For the second, the errors of negative numbers have their signs changed.

The null hypothesis of both: flip the signs of all errors of a row together, by a fair coin per row.
The sum over rows then has mean 0 and variance sum_r s_r^2, where s_r is a row's sum of errors in
ulps, so z = sum_r s_r / sqrt(sum_r s_r^2). Errors inside a row may depend on each other in any way.
Where rows share arguments (exp of a BF16 number has few), equal arguments make equal errors, so a
coin is also flipped once per distinct argument. The larger of the two variances counts, but never
less than that of independent events, which is the sum of squares of all errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from roundscope.emu.formats.format import Format
from roundscope.emu.stats.summary import Stats
from roundscope.tools.trace.focus import Distinct, away_by_argument

FALSE_ALARMS = 0.01  # chance that a report without any bias marks something


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanError:
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
    """Return the |z| that any of `tests` unbiased ones exceeds with probability FALSE_ALARMS."""
    return NormalDist().inv_cdf(1.0 - FALSE_ALARMS / (2 * max(tests, 1)))


def mean_error(clusters: Sequence[Any], n: int, independent: float = 0.0) -> MeanError:
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
    return MeanError(
        mean=total / n,
        se=math.sqrt(centered) / n,
        z=total / null if null > 0.0 else 0.0,
        null=null / n,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """One of the two questions asked of an event, and its answer.

    error    the mean error;  by_rows: the bias as flips of rows alone would show it
    limit    the |z| beyond which there is a bias
    """

    error: MeanError
    by_rows: MeanError
    limit: float

    @property
    def is_biased(self) -> bool:
        """Whether |z| exceeds the threshold."""
        return abs(self.error.z) > self.limit

    @property
    def is_shared(self) -> bool:
        """Whether |z| does so by rows only, because equal arguments round alike."""
        return abs(self.by_rows.z) > self.limit >= abs(self.error.z)

    @property
    def mark(self) -> str:
        """▲ or ▼ for a bias, = where shared arguments explain it, else ·."""
        if self.is_biased:
            return "▲" if self.error.mean > 0 else "▼"
        return "=" if self.is_shared else "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the table: a site's counts over all heads, and its bias.

    counts      the counts of the site, by name
    signed      whether its errors are biased up or down
    away        whether they are biased away from zero or toward it
    distinct    the number of distinct arguments, if they were counted
    mean_abs    the mean |error| in ulps;  peak: the largest
    worst       the (batch, head) whose mean lies farthest from zero;  worst_mean: that mean
    """

    name: str
    format: Format
    counts: dict[str, float]
    signed: Bias
    away: Bias
    distinct: int | None
    mean_abs: float
    peak: float
    worst: tuple[int, int]
    worst_mean: float

    @property
    def rounds(self) -> bool:
        """True if at least one of the roundings that the event counts is inexact or NaN."""
        return bool(self.counts["inexact"] or self.counts["nan"])

    @property
    def is_biased(self) -> bool:
        """Whether one of the two tests finds a bias."""
        return self.signed.is_biased or self.away.is_biased

    @property
    def is_shared(self) -> bool:
        """Whether flips of rows alone show a bias, and coins of distinct arguments do not."""
        return not self.is_biased and (self.signed.is_shared or self.away.is_shared)

    @property
    def relative(self) -> float:
        """The largest relative error that a mean can be: an ulp of a format is at most epsilon."""
        biased = [abs(t.error.mean) for t in (self.signed, self.away) if t.is_biased]
        return max(biased, default=abs(self.signed.error.mean)) * self.format.epsilon

    def share(self, name: str) -> float:
        """Return a count as a share of all events."""
        return self.counts[name] / max(self.counts["n"], 1)


def event(
    name: str,
    f: Format,
    stats: Stats,
    rows: np.ndarray,
    away: np.ndarray,
    limit: float,
    distinct: Distinct | None = None,
) -> Event:
    """Return the line of a site.

    f           the format to which it rounds
    stats       its statistics (batch, heads)
    rows, away  its sums of signed ulps, and of ulps away from zero, (batch, heads, rows)
    limit       the |z| beyond which it counts as biased
    distinct    what `tools.trace.focus.by_argument` returns, or None
    """
    total = stats.total()
    n, squares = int(total.n), float(total.sq_ulps)

    def test(sums: np.ndarray, shared: np.ndarray | None) -> Bias:
        by_rows = mean_error([sums], n, squares)
        both = by_rows if shared is None else mean_error([sums, shared], n, squares)
        return Bias(error=both, by_rows=by_rows, limit=limit)

    means = np.where(stats.n > 0, stats.mean_ulps, 0.0)
    worst = np.unravel_index(int(np.abs(means).argmax()), means.shape)
    return Event(
        name=name,
        format=f,
        counts=total.as_dict(),
        signed=test(rows, None if distinct is None else distinct[1]),
        away=test(away, None if distinct is None else away_by_argument(distinct)),
        distinct=None if distinct is None else int(distinct[0].size),
        mean_abs=float(total.mean_abs_ulps),
        peak=float(total.peak),
        worst=(int(worst[0]), int(worst[1])),
        worst_mean=float(means[worst]),
    )


def head_leans(stats: Stats, rows: np.ndarray, ratio: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return mean signed ulps and z by (batch, head); ratio: event's null over that of rows."""
    null = np.sqrt((rows**2).sum(-1))
    null = np.maximum(null, np.sqrt(stats.sq_ulps)) * ratio
    return stats.mean_ulps, rows.sum(-1) / np.where(null > 0.0, null, math.inf)
