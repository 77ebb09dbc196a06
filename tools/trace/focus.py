"""What a trace keeps of single events: errors by row and tile, histograms, distinct arguments.

The events are reduced to these as they come.

Everything here is exact in binary64 up to the order of its sums: `after - before` has no rounding
(emu.stats.classify).
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from roundscope.emu.formats.format import Format

BINS = 81  # of 1/40 ulp each, centered on 0; ties fall into the bins of -1/2 and +1/2
AT_ONCE = 1 << 22  # events whose arguments are counted together
CENTRES = (np.arange(BINS) - BINS // 2) / 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The inexact events of one site by signed error in ulps.

    counts  (BINS,);  beyond: how many lie outside the bins
    """

    counts: np.ndarray
    beyond: int

    @property
    def size(self) -> int:
        """The number of inexact events."""
        return int(self.counts.sum()) + self.beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """Errors of one site, in ulps of its format.

    signed     (B, N, tiles, T): sum over each row's events;  away: the same, counted away from zero
    value      (B, N, T, H): error in value summed over tiles, of events with features; else None
    """

    signed: np.ndarray
    away: np.ndarray
    histogram: Histogram
    value: np.ndarray | None

    @property
    def rounds(self) -> bool:
        """True if an event of the site is inexact by an error within the histogram's bins."""
        return bool(self.histogram.counts.any())


def of_heads(parts: list[Focus]) -> Focus:
    """Return the errors of different heads of a site as one, in this order."""
    values = [p.value for p in parts if p.value is not None]
    return Focus(
        signed=np.concatenate([p.signed for p in parts], axis=1),
        away=np.concatenate([p.away for p in parts], axis=1),
        value=np.concatenate(values, axis=1) if values else None,
        histogram=Histogram(
            counts=sum((p.histogram.counts for p in parts), np.zeros(BINS, np.int64)),
            beyond=sum(p.histogram.beyond for p in parts),
        ),
    )


def ulps_of(before: np.ndarray, after: np.ndarray, f: Format) -> np.ndarray:
    """Return (after - before) in ulps of the format in the binade of `before`; 0 if not finite."""
    exponent = np.maximum(np.frexp(before)[1] - 1, f.emin)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.ldexp(after - before, f.precision - 1 - exponent)
    return np.where(np.isfinite(error), error, 0.0)


def focus(before: np.ndarray, after: np.ndarray, f: Format, *, per_feature: bool) -> Focus:
    """Return the reduced errors of a site from the arguments and results of all its events.

    before, after  (B, N, T, S), or with per_feature (B, N, [tiles,] T, H)
    f              the format to which the site rounds
    per_feature    whether the events have an axis of features; if so, `Focus.value` is filled
    """
    if before.ndim == 4:
        before, after = before[:, :, None], after[:, :, None]
    ulps = ulps_of(before, after, f)
    error = None
    if per_feature:
        with np.errstate(invalid="ignore"):
            error = np.where(np.isfinite(after - before), after - before, 0.0).sum(2)
    inexact = ulps[ulps != 0.0]
    place = np.rint(inexact * 40.0) + BINS // 2
    inside = (place >= 0) & (place < BINS)
    counts = np.bincount(place[inside].astype(np.int64), minlength=BINS)
    return Focus(
        signed=ulps.sum(-1),
        away=(ulps * np.copysign(1.0, before)).sum(-1),
        histogram=Histogram(counts=counts, beyond=int(inexact.size - inside.sum())),
        value=error,
    )


# signed significands (by_error: errors), ascending, and the sum of signed ulps of each
Distinct = tuple[np.ndarray, np.ndarray]


def by_argument(
    before: np.ndarray, after: np.ndarray, f: Format, *, by_error: bool = False
) -> Distinct:
    """Return the distinct arguments of a site's inexact events, and each one's summed signed ulps.

    Arguments that differ by a power of two round alike, so they count as one: the key is the signed
    significand. With `by_error` the key is the exact signed error in ulps. That is meant for
    LSE = m + ln l alone: a coarse m is a multiple of the result's ulp, so ln l and the binade
    decide the error, which the significand of the sum does not show. Sums such as O = AO + PV have
    few distinct errors by nature; this key would give one coin to all their ties and hide real
    bias.
    """

    def grouped(before: np.ndarray, after: np.ndarray) -> Distinct:
        chosen = before != after
        before, after = before[chosen], after[chosen]
        ulps = ulps_of(before, after, f)
        return _grouped(ulps if by_error else np.frexp(before)[0], ulps)

    count = max(1, -(-before.size // AT_ONCE))
    parts = (np.array_split(x.reshape(-1), count) for x in (before, after))
    return reduce(lambda *two: merged(list(two)), map(grouped, *parts))


def away_by_argument(distinct: Distinct) -> np.ndarray:
    """Return the sums of ulps counted away from zero, one per distinct |significand|."""
    values, sums = distinct
    return _grouped(np.abs(values), sums * np.sign(values))[1]


def merged(parts: list[Distinct]) -> Distinct:
    """Return the distinct arguments of several sets of events taken together."""
    return _grouped(*(np.concatenate([p[i] for p in parts]) for i in range(2)))


def _grouped(values: np.ndarray, ulps: np.ndarray) -> Distinct:
    distinct, which = np.unique(values, return_inverse=True)
    return distinct, np.bincount(which.reshape(-1), weights=ulps, minlength=distinct.size)


def ones_of(p: np.ndarray, block_k: int) -> np.ndarray:
    """Return how many P are 1 in each row and key tile: (B, N, T, S) -> (B, N, tiles, T)."""
    tiles = [(p[..., lo : lo + block_k] == 1.0).sum(-1) for lo in range(0, p.shape[-1], block_k)]
    return np.stack(tiles, axis=2)


def existing(
    queries: int,
    keys: int,
    block_q: int,
    block_k: int,
    causal: bool,
    visible: np.ndarray | None = None,
    shift: int = 0,
) -> np.ndarray:
    """Return whether a row has events in a key tile, (tiles, T).

    It lacks them in the causal tiles above the diagonal, which the algorithm skips.

    visible: (B, N, T, S), which keys a query sees, for layers with a mask or a window; the result
    is then (B, N, tiles, T). The algorithm skips tiles that no query sees, and a row has events
    from the first tile on in which it sees a key.
    shift: the key at which query 0 of a causal call stands.
    """
    at = np.arange(queries) + shift
    last = np.minimum((np.arange(queries) // block_q + 1) * block_q, queries) - 1 + shift
    first = np.arange(0, keys, block_k)
    if visible is not None:
        tiles = [visible[..., lo : lo + block_k].any(-1) for lo in first]
        sees = np.stack(tiles, axis=2)
        blocks = (sees[..., lo : lo + block_q] for lo in range(0, queries, block_q))
        runs = [np.repeat(x.any(-1, keepdims=True), x.shape[-1], axis=-1) for x in blocks]
        begun = np.maximum.accumulate(sees, axis=2)
        return np.asarray(begun & np.concatenate(runs, axis=-1))
    if not causal:
        return np.ones((first.size, queries), dtype=bool)
    return np.asarray((first[:, None] <= last[None, :]) & (at >= 0)[None, :])
