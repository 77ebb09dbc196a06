"""What the trace keeps of single events, reduced as they come: errors by row and tile, histogram,
distinct arguments.

Everything here is exact in binary64 up to the order of its sums: `after - before` has no rounding
(emu.stats.classify).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.emu.formats.format import Format

BINS = 81  # of 1/40 ulp, centred on 0; ties stand in the bins of -1/2 and +1/2
CENTRES = (np.arange(BINS) - BINS // 2) / 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """Errors of one site, in ulps of its format.

    signed     (B, N, tiles, T): sum over each row's events;  away: the same, counted away from zero
    histogram  (BINS,): inexact events by signed error;  beyond: those outside
    value      (B, N, T, H): error in value summed over tiles, of events with features; else None
    """

    signed: np.ndarray
    away: np.ndarray
    histogram: np.ndarray
    beyond: int
    value: np.ndarray | None

    def __add__(self, other: "Focus") -> "Focus":
        """The events of other heads, behind these."""

        def join(a, b):
            return np.concatenate([a, b], axis=1)

        value = None if self.value is None or other.value is None else join(self.value, other.value)
        return Focus(
            signed=join(self.signed, other.signed),
            away=join(self.away, other.away),
            value=value,
            histogram=self.histogram + other.histogram,
            beyond=self.beyond + other.beyond,
        )


def ulps_of(before: np.ndarray, after: np.ndarray, f: Format) -> np.ndarray:
    """(after - before) in ulps of the format in the binade of `before`; 0 where either is not
    finite.
    """
    exponent = np.maximum(np.frexp(before)[1] - 1, f.emin)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.ldexp(after - before, f.precision - 1 - exponent)
    return np.where(np.isfinite(error), error, 0.0)


def focus(before: np.ndarray, after: np.ndarray, f: Format, *, per_feature: bool) -> Focus:
    """From every (before, after) of a site: (B, N, T, S), or (B, N, [tiles,] T, H) with
    per_feature.
    """
    if before.ndim == 4:
        before, after = before[:, :, None], after[:, :, None]
    ulps = ulps_of(before, after, f)
    counts, beyond = _histogram(ulps)
    with np.errstate(invalid="ignore"):
        error = (
            np.where(np.isfinite(after - before), after - before, 0.0).sum(2)
            if per_feature
            else None
        )
    return Focus(
        signed=ulps.sum(-1),
        away=(ulps * np.copysign(1.0, before)).sum(-1),
        histogram=counts,
        beyond=beyond,
        value=error,
    )


def _histogram(ulps: np.ndarray) -> tuple[np.ndarray, int]:
    inexact = ulps[ulps != 0.0]
    place = np.rint(inexact * 40.0) + BINS // 2
    inside = (place >= 0) & (place < BINS)
    counts = np.bincount(place[inside].astype(np.int64), minlength=BINS)
    return counts, int(inexact.size - inside.sum())


Distinct = tuple[
    np.ndarray, np.ndarray
]  # signed significands (by_error: errors), ascending, and the sum of signed ulps of each


def by_argument(
    before: np.ndarray, after: np.ndarray, f: Format, *, by_error: bool = False
) -> Distinct:
    """The distinct arguments of a site's inexact events, and the signed ulps summed over each one's
    events.

    Arguments a power of two apart round alike, so they count as one: what is distinct is the signed
    significand. by_error: what is distinct is the exact signed error in ulps. It is meant for LSE =
    m + ln l alone: a coarse m is a multiple of the result's ulp, so ln l and the binade decide the
    error while the significand of the sum hides that. Sums such as O = AO + PV have few errors by
    nature; this key would make one coin of all their ties and hide real bias.
    """
    chosen = before != after
    before, after = before[chosen], after[chosen]
    ulps = ulps_of(before, after, f)
    return _grouped(ulps if by_error else np.frexp(before)[0], ulps)


def away_by_argument(distinct: Distinct) -> np.ndarray:
    """Sums of ulps away from zero by |significand|."""
    values, sums = distinct
    return _grouped(np.abs(values), sums * np.sign(values))[1]


def merged(parts: list[Distinct]) -> Distinct:
    """Those of several sets of events."""
    return _grouped(*(np.concatenate([p[i] for p in parts]) for i in range(2)))


def _grouped(values: np.ndarray, ulps: np.ndarray) -> Distinct:
    distinct, which = np.unique(values, return_inverse=True)
    return distinct, np.bincount(which.reshape(-1), weights=ulps, minlength=distinct.size)


def ones_of(p: np.ndarray, block_k: int) -> np.ndarray:
    """How many P of every row and key tile are 1: (B, N, T, S) -> (B, N, tiles, T)."""
    tiles = [(p[..., lo : lo + block_k] == 1.0).sum(-1) for lo in range(0, p.shape[-1], block_k)]
    return np.stack(tiles, axis=2)


def existing(queries: int, keys: int, block_q: int, block_k: int, causal: bool) -> Any:
    """(tiles, T): whether a row has an event of its own in a key tile; causal tiles above the
    diagonal are skipped.
    """
    last = np.minimum((np.arange(queries) // block_q + 1) * block_q, queries) - 1
    first = np.arange(0, keys, block_k)
    return (
        (first[:, None] <= last[None, :]) if causal else np.ones((first.size, queries), dtype=bool)
    )
