"""What rounding does to the results: differences in value, delta's error along tokens, rows with
several P = 1.

Differences are binary64, of results that left in binary32 or binary64; statistics as in
experiments.trace.analysis.bias.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.experiments.trace.analysis.bias import FALSE_ALARMS, Lean, lean, threshold


def difference(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """a - b in value: largest |.|, root mean square, mean, and the root mean square relative to
    that of b.

    NaN in both places count as equal; other non-finite differences are counted in `not_finite`.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        d = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)
    finite = np.isfinite(d)
    d, size = d[finite], float(np.sqrt(np.mean(b[finite] ** 2))) if finite.any() else 0.0
    rms = float(np.sqrt(np.mean(d**2))) if d.size else 0.0
    return {
        "max_abs": float(np.abs(d).max(initial=0.0)),
        "rms": rms,
        "mean": float(d.mean()) if d.size else 0.0,
        "relative_rms": rms / size if size > 0.0 else 0.0,
        "not_finite": int((~finite).sum()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """By how much a result is too long (above 0) or too short (below 0), as a part of its length.

    mean and se are those of the heads' gains <a - b, b> / |b|^2, b the result compared with. The
    heads that read one key head count as one, since they share the errors of K and V. se is NaN
    where there is one such head. limit is the |mean / se| that unbiased heads exceed in one trace
    of a hundred, by Student's distribution.
    """

    mean: float
    se: float
    limit: float

    @property
    def is_biased(self) -> bool:
        """Whether the mean lies further from 0 than the heads' scatter explains."""
        return abs(self.mean) > self.limit * self.se


def gain(a: np.ndarray, b: np.ndarray, key_heads: int, tests: int) -> Gain:
    """Return the gain of a over b, both (B, T, N, H); numbers that are not finite are left out.

    tests is the number of results that are judged together.
    """
    from scipy.special import stdtrit

    def by_key_head(x: np.ndarray) -> np.ndarray:
        batch, rows, heads, _ = x.shape
        apart = x.reshape(batch, rows, key_heads, heads // key_heads, -1).transpose(0, 2, 1, 3, 4)
        return apart.reshape(batch * key_heads, -1)

    ours, theirs = (by_key_head(np.asarray(x, dtype=np.float64)) for x in (a, b))
    kept = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = np.where(kept, ours, 0.0), np.where(kept, theirs, 0.0)
    length = np.square(theirs).sum(1)
    gains = ((ours - theirs) * theirs).sum(1)[length > 0.0] / length[length > 0.0]
    n = gains.size
    return Gain(
        mean=float(gains.mean()) if n else 0.0,
        se=float(gains.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan,
        limit=float(stdtrit(n - 1, 1.0 - FALSE_ALARMS / (2 * tests))) if n > 1 else math.inf,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDrift:
    """delta(plan) - delta(against), (B, T, N): z of its sum over the tokens of each head against
    sign flips, the worst head.
    """

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

    @property
    def crossing(self) -> int | None:
        """The first token at which the worst head's running sum stands beyond the threshold's
        curve; None if it never does.
        """
        error = self.error[self.worst[0], :, self.worst[1]]
        band = self.limit * np.sqrt(np.cumsum(error**2))
        beyond = np.flatnonzero(np.abs(np.cumsum(error)) > band)
        return int(beyond[0]) if beyond.size else None


def delta_drift(delta: Any, other: Any, out: Any, other_out: Any, do: Any) -> DeltaDrift:
    """How delta's error adds up along tokens.

    By linearity it equals rowsum dO (O - O_against) if delta comes from O.
    """
    d = np.nan_to_num(
        np.asarray(delta, np.float64) - np.asarray(other, np.float64), posinf=0.0, neginf=0.0
    )
    from_o = (
        np.asarray(do, np.float64)
        * (np.asarray(out, np.float64) - np.asarray(other_out, np.float64))
    ).sum(-1)
    null = np.sqrt((d**2).sum(1))
    z = d.sum(1) / np.where(null > 0.0, null, math.inf)
    b, n = np.unravel_index(int(np.abs(z).argmax()), z.shape)
    return DeltaDrift(
        error=d,
        z=z,
        worst=(int(b), int(n)),
        limit=threshold(z.size),
        overall=lean([d], d.size),
        identity=float(np.nanmax(np.abs(d - from_o), initial=0.0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One site's errors in key-tile rows with several P = 1 and in the others, signed and away from
    zero.
    """

    site: str
    events: tuple[int, int]  # with several, others
    signed: tuple[Lean, Lean]
    away: tuple[Lean, Lean]

    @property
    def share(self) -> float:
        """The part of the total away-from-zero error that comes from rows with several P = 1 (nan
        if the total is 0).
        """
        sums = [x.mean * n for x, n in zip(self.away, self.events, strict=True)]
        return sums[0] / sum(sums) if sum(sums) else math.nan

    @property
    def z(self) -> float:
        """Difference of the two means away from zero, in its standard errors."""
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
    """signed, away, several: (B, N, tiles, T); exists: broadcastable; groups of the null are rows
    (B, N, T).

    wider: by how much shared arguments widen the standard errors of signed and away.
    """
    parts = [several & exists, ~several & exists]
    n = tuple(int(np.broadcast_to(p, signed.shape).sum()) * features for p in parts)

    def means(x: np.ndarray, by: float) -> tuple[Lean, ...]:
        found = [lean([np.where(p, x, 0.0).sum(2)], m) for p, m in zip(parts, n, strict=True)]
        return tuple(Lean(mean=f.mean, se=f.se * by, z=f.z / by, null=f.null * by) for f in found)

    return Share(site=site, events=n, signed=means(signed, wider[0]), away=means(away, wider[1]))  # type: ignore[arg-type]
