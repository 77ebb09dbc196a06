"""Which events lean, and what follows: statistics of a trace. Sums are binary64; no number is rounded further.

The null. Flip the signs of all errors of a row together, by a fair coin per row. The sum over rows then has mean 0
and variance sum_r s_r^2, s_r a row's sum of signed ulps, so  z = sum_r s_r / sqrt(sum_r s_r^2).  Errors inside a row
may depend on each other in any way. Where rows share arguments (exp of a BF16 number has few), equal arguments make
equal errors, so the coin is flipped once per distinct argument as well, and the larger of the two variances counts,
and never less than that of independent events, sum of squares of all errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from emu.formats import Format
from emu.stats import Stats

FALSE_ALARMS = 0.01  # chance that a report without any bias marks something


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """A mean signed error against the null: mean and standard error per event, z, and the null's deviation of the mean."""

    mean: float
    se: float
    z: float
    null: float


def threshold(tests: int) -> float:
    """|z| that one of `tests` unbiased events exceeds with chance FALSE_ALARMS (Bonferroni)."""
    return NormalDist().inv_cdf(1.0 - FALSE_ALARMS / (2 * max(tests, 1)))


def lean(clusters: Sequence[Any], n: int, independent: float = 0.0) -> Lean:
    """The mean of n errors against sign flips of clusters.

    clusters     for each way to group the events (rows; distinct arguments), the sum of signed errors of each group
    independent  sum of squares of all errors, if known

    z = total / sqrt(max over ways of sum_c s_c^2), at most sqrt(groups) by Cauchy-Schwarz; the standard error is
    that of the groups about their mean. Law: a common factor changes mean, se and null, and leaves z.
    """
    groups = [np.asarray(c, dtype=np.float64).reshape(-1) for c in clusters]
    total, n = float(groups[0].sum()), max(n, 1)
    flips = [float(c @ c) for c in groups]
    null = math.sqrt(max(*flips, independent, 0.0))
    centred = max(flips[0] - total**2 / max(groups[0].size, 1), independent - total**2 / n, *flips[1:], 0.0)
    return Lean(mean=total / n, se=math.sqrt(centred) / n, z=total / null if null > 0.0 else 0.0, null=null / n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the table: a site's counts over all heads, and its lean.

    by_rows   the lean that flips of rows alone would show;  distinct: number of distinct arguments, if counted
    leans     whether |z| exceeds the threshold
    worst     (batch, head) whose mean lies farthest from zero, and that mean
    """

    name: str
    format: Format
    counts: dict[str, float]
    lean: Lean
    by_rows: Lean
    distinct: int | None
    leans: bool
    mean_abs: float
    peak: float
    worst: tuple[int, int]
    worst_mean: float

    @property
    def relative(self) -> float:
        """|mean| as a relative error: ulps of a format are at most epsilon."""
        return abs(self.lean.mean) * self.format.epsilon

    def share(self, name: str) -> float:
        """A count as a part of all events."""
        return self.counts[name] / max(self.counts["n"], 1)


def event(name: str, f: Format, stats: Stats, rows: np.ndarray, limit: float, distinct: Any = None) -> Event:
    """From a site's stats (batch, heads) and row sums (batch, heads, rows); distinct: (arguments, sums) or None."""
    total = stats.total()
    n, squares = int(total.n), float(total.sq_ulps)
    by_rows = lean([rows], n, squares)
    both = by_rows if distinct is None else lean([rows, distinct[1]], n, squares)
    means = np.where(stats.n > 0, stats.mean_ulps, 0.0)
    worst = np.unravel_index(int(np.abs(means).argmax()), means.shape)
    return Event(
        name=name, format=f, counts=total.as_dict(), lean=both, by_rows=by_rows, leans=abs(both.z) > limit,
        distinct=None if distinct is None else int(distinct[0].size), mean_abs=float(total.mean_abs_ulps),
        peak=float(total.peak), worst=(int(worst[0]), int(worst[1])), worst_mean=float(means[worst]),
    )  # fmt: skip


def head_leans(stats: Stats, rows: np.ndarray, ratio: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean signed ulps and z of every (batch, head); ratio: how much wider than the rows' the event's null is."""
    null = np.sqrt((rows**2).sum(-1))
    null = np.maximum(null, np.sqrt(stats.sq_ulps)) * ratio
    return stats.mean_ulps, rows.sum(-1) / np.where(null > 0.0, null, math.inf)


def difference(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """a - b in value: largest |.|, root mean square, mean, and the root mean square relative to that of b.

    NaN in both places count as equal; other non-finite differences are counted in `not_finite`.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        d = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)
    finite = np.isfinite(d)
    d, size = d[finite], float(np.sqrt(np.mean(b[finite] ** 2))) if finite.any() else 0.0
    rms = float(np.sqrt(np.mean(d**2))) if d.size else 0.0
    return {
        "max_abs": float(np.abs(d).max(initial=0.0)), "rms": rms, "mean": float(d.mean()) if d.size else 0.0,
        "relative_rms": rms / size if size > 0.0 else 0.0, "not_finite": int((~finite).sum()),
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDrift:
    """delta(plan) - delta(against), (B, T, N): z of its sum over the tokens of each head against sign flips, the worst head."""

    error: np.ndarray
    z: np.ndarray
    worst: tuple[int, int]
    limit: float
    overall: Lean
    identity: float  # largest |error - rowsum dO (O - O_against)|

    @property
    def leans(self) -> bool:
        """Whether some head's running sum ends beyond the threshold."""
        return bool(np.abs(self.z[self.worst]) > self.limit)


def delta_drift(delta: Any, other: Any, out: Any, other_out: Any, do: Any) -> DeltaDrift:
    """How delta's error adds up along tokens. By linearity it equals rowsum dO (O - O_against) if delta comes from O."""
    d = np.nan_to_num(np.asarray(delta, np.float64) - np.asarray(other, np.float64), posinf=0.0, neginf=0.0)
    from_o = (np.asarray(do, np.float64) * (np.asarray(out, np.float64) - np.asarray(other_out, np.float64))).sum(-1)
    null = np.sqrt((d**2).sum(1))
    z = d.sum(1) / np.where(null > 0.0, null, math.inf)
    b, n = np.unravel_index(int(np.abs(z).argmax()), z.shape)
    return DeltaDrift(
        error=d, z=z, worst=(int(b), int(n)), limit=threshold(z.size), overall=lean([d], d.size),
        identity=float(np.nanmax(np.abs(d - from_o), initial=0.0)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One site's errors in key-tile rows with several P = 1 and in the others, signed and away from zero."""

    site: str
    events: tuple[int, int]  # with several, others
    signed: tuple[Lean, Lean]
    away: tuple[Lean, Lean]

    @property
    def share(self) -> float:
        """The part of the total away-from-zero error that comes from rows with several P = 1 (nan if the total is 0)."""
        sums = [x.mean * n for x, n in zip(self.away, self.events, strict=True)]
        return sums[0] / sum(sums) if sum(sums) else math.nan


def share(site: str, signed: np.ndarray, away: np.ndarray, several: np.ndarray, exists: np.ndarray, features: int) -> Share:
    """signed, away, several: (B, N, tiles, T); exists: broadcastable; groups of the null are rows (B, N, T)."""
    parts = [several & exists, ~several & exists]
    n = tuple(int(np.broadcast_to(p, signed.shape).sum()) * features for p in parts)
    flips = lambda x: tuple(lean([np.where(p, x, 0.0).sum(2)], m) for p, m in zip(parts, n, strict=True))  # noqa: E731
    return Share(site=site, events=n, signed=flips(signed), away=flips(away))  # type: ignore[arg-type]
