"""What rounding does to the results.

This is measured by differences in value, delta's error along tokens, and the errors of rows with
several P = 1. Differences are computed in binary64, of results in binary32 or binary64; the
statistics are those of tools.trace.analysis.bias.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.emu.stats import comparison
from roundscope.emu.stats.comparison import deviations, relative_rms
from roundscope.tools.trace.analysis.bias import FALSE_ALARMS, MeanError, mean_error, threshold


def difference(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Return statistics of a - b in value, by name.

    They are max_abs, rms, mean, relative_rms (the rms relative to that of b) and not_finite. NaN in
    both places count as equal, and so do equal infinities; other differences with a number that is
    not finite are infinite, and counted in not_finite. With such a difference there is no mean.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    d = deviations(a, b)
    count = int(np.isinf(d).sum())
    with np.errstate(over="ignore"):
        rms = float(np.sqrt(np.mean(d**2)))
    return {
        "max_abs": float(np.abs(d).max(initial=0.0)),
        "rms": rms,
        "mean": math.nan if count else float(d.mean()),
        "relative_rms": relative_rms(a, b),
        "not_finite": count,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """By how much a result is too long (above 0) or too short (below 0), as a part of its length.

    mean and se are those of the heads' gains <a - b, b> / |b|^2, b the result compared with. The
    heads that read one key head count as one, since they share the errors of K and V. se is NaN
    where there is one such head. limit is the |mean / se| that unbiased heads exceed in one trace
    of a hundred, by Student's distribution. heads is how many there are.
    """

    mean: float
    se: float
    limit: float
    heads: int

    @property
    def is_biased(self) -> bool:
        """Return whether the mean lies further from 0 than the heads' scatter explains."""
        return abs(self.mean) > self.limit * self.se


def gain(a: np.ndarray, b: np.ndarray, key_heads: int, tests: int) -> Gain:
    """Return the gain of a over b, both (B, T, N, H).

    It is NaN if a number of a or b is lost (`emu.stats.comparison`), and so is its error.

    tests is the number of results that are judged together.
    """
    from scipy.special import stdtrit

    def by_key_head(x: np.ndarray) -> np.ndarray:
        batch, rows, heads, _ = x.shape
        apart = x.reshape(batch, rows, key_heads, heads // key_heads, -1).transpose(0, 2, 1, 3, 4)
        return apart.reshape(batch * key_heads, -1)

    ours, theirs = (by_key_head(np.asarray(x, dtype=np.float64)) for x in (a, b))
    there = np.where(np.isfinite(theirs), theirs, 0.0).any(1)
    gains = np.array(
        [comparison.gain(x, y) for x, y in zip(ours[there], theirs[there], strict=True)]
    )
    n = gains.size
    return Gain(
        mean=float(gains.mean()) if n else 0.0,
        se=float(gains.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan,
        limit=float(stdtrit(n - 1, 1.0 - FALSE_ALARMS / (2 * tests))) if n > 1 else math.inf,
        heads=n,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDrift:
    """The error of delta and how it adds up over the tokens.

    error     delta of the plan minus that of the plan compared with, (B, T, N); infinite where one
              of them is not finite
    z         (B, N): the sum over the tokens of each head, tested against sign flips; NaN where an
              error is infinite
    worst     the (batch, head) with the largest |z|;  limit: the threshold of |z|
    overall   the bias of all errors of the heads without infinite ones
    identity  the largest finite |error - rowsum dO (O - O_against)|
    """

    error: np.ndarray
    z: np.ndarray
    worst: tuple[int, int]
    limit: float
    overall: MeanError
    identity: float

    @property
    def lost(self) -> int:
        """Return how many errors are infinite."""
        return int(np.isinf(self.error).sum())

    @property
    def is_known(self) -> bool:
        """Return whether some head has no infinite error."""
        return bool(np.isfinite(self.z).any())

    @property
    def leans(self) -> bool:
        """Return whether some head's running sum ends beyond the threshold."""
        return bool(np.abs(self.z[self.worst]) > self.limit)

    @property
    def crossing(self) -> int | None:
        """The first token at which the worst head's sum is beyond the threshold; None if never."""
        error = self.error[self.worst[0], :, self.worst[1]]
        band = self.limit * np.sqrt(np.cumsum(error**2))
        beyond = np.flatnonzero(np.abs(np.cumsum(error)) > band)
        return int(beyond[0]) if beyond.size else None


def delta_drift(delta: Any, other: Any, out: Any, other_out: Any, do: Any) -> DeltaDrift:
    """Return how the error of delta adds up along tokens.

    delta, other    delta of the plan and of the plan compared with, (B, T, N)
    out, other_out  their outputs, (B, T, N, H);  do: the gradient of the output

    By linearity the error equals rowsum dO (O - O_against) if delta comes from O.
    """
    delta, other, out, other_out, do = (
        np.asarray(x, np.float64) for x in (delta, other, out, other_out, do)
    )
    d = deviations(delta, other)
    fine = np.isfinite(d).all(1)
    kept = np.where(fine[:, None], d, 0.0)
    with np.errstate(invalid="ignore"):
        from_o = (do * (out - other_out)).sum(-1)
        gap = np.abs(d - from_o)
    null = np.sqrt((kept**2).sum(1))
    z = np.where(fine, kept.sum(1) / np.where(null > 0.0, null, math.inf), math.nan)
    b, n = np.unravel_index(int(np.where(fine, np.abs(z), -1.0).argmax()), z.shape)
    return DeltaDrift(
        error=d,
        z=z,
        worst=(int(b), int(n)),
        limit=threshold(z.size),
        overall=mean_error([kept], int(fine.sum()) * d.shape[1]),
        identity=float(np.where(np.isfinite(gap), gap, 0.0).max(initial=0.0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One site's errors in the rows of key tiles with several P = 1, and in the other rows.

    Each pair holds the former first. events: the number of events; signed, away: their bias, signed
    and counted away from zero.
    """

    site: str
    events: tuple[int, int]
    signed: tuple[MeanError, MeanError]
    away: tuple[MeanError, MeanError]

    @property
    def share(self) -> float:
        """The share of rows with several P = 1 in the error away from zero; NaN if that is 0."""
        sums = [x.mean * n for x, n in zip(self.away, self.events, strict=True)]
        return sums[0] / sum(sums) if sum(sums) else math.nan

    @property
    def z(self) -> float:
        """The difference of the two means away from zero, in units of its standard error."""
        a, b = self.away
        error = math.hypot(a.se, b.se)
        return (a.mean - b.mean) / error if error > 0.0 and min(self.events) else 0.0


def share(
    site: str,
    signed: np.ndarray,
    away: np.ndarray,
    several: np.ndarray,
    exists: np.ndarray,
    features: int,
    wider: tuple[float, float] = (1.0, 1.0),
) -> Share:
    """Compare a site's errors in rows with several P = 1 with those in the other rows.

    signed, away  (B, N, tiles, T): each row's sums of errors, signed and counted away from zero
    several       (B, N, tiles, T): the rows with several P = 1
    exists        broadcastable to these: the rows that have events
    features      the number of events per row
    wider         the factors by which shared arguments widen the standard errors of signed and away

    The groups of the null hypothesis are rows (B, N, T).
    """
    parts = (several & exists, ~several & exists)
    ones, others = (int(np.broadcast_to(p, signed.shape).sum()) * features for p in parts)

    def mean(x: np.ndarray, part: np.ndarray, n: int, by: float) -> MeanError:
        b = mean_error([np.where(part, x, 0.0).sum(2)], n)
        return MeanError(mean=b.mean, se=b.se * by, z=b.z / by, null=b.null * by)

    def means(x: np.ndarray, by: float) -> tuple[MeanError, MeanError]:
        return mean(x, parts[0], ones, by), mean(x, parts[1], others, by)

    return Share(
        site=site, events=(ones, others), signed=means(signed, wider[0]), away=means(away, wider[1])
    )
