"""How much of a metric each axis explains, with the seeds as the noise level, and which changed
nothing.

Also: intervals of means over seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtri, stdtrit

from roundscope.tools.sweep.measuring.metrics import METRICS
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.storage.frames import Axis, Frame, bits, numbered, together

FALSE_ALARMS = 0.01  # probability that seeds alone make any axis of a report stand out
MAGNITUDES = ("max_abs", "rms", "rel_rms", "mean_abs", "ratio_max", "ratio_rms", "vs_unfused_max")
# metrics above zero: drawn and explained by their logarithm
LOG = frozenset(n for n in METRICS if n.endswith(MAGNITUDES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one axis explains of a metric.

    share  the sum of squares between the means of its values over the total (main effect, eta
           squared)
    limit  the share that seeds alone would exceed in less than one report of a hundred; NaN where
           there is one seed
    """

    axis: Axis
    share: float
    limit: float

    @property
    def stands_out(self) -> bool:
        """Return whether the share is more than noise; False where one seed leaves that open."""
        return bool(self.share > self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The effects of all axes.

    effects  the effects, the largest first
    seeds    the share within conditions, which no axis explains; NaN without repetition
    cells    the number of cells that have the metric
    crossed  whether every combination of values is there, so that the shares add up to at most 1
    """

    effects: tuple[Effect, ...]
    seeds: float
    cells: int
    crossed: bool

    @property
    def is_of_one(self) -> bool:
        """Whether a lone axis explains it all, so that a bar of 100 % would say nothing."""
        return len(self.effects) == 1 and self.effects[0].share > 0.995


def mean_interval(x: np.ndarray) -> tuple[float, float]:
    """Return the mean of the numbers and half of its 95 % t interval.

    Both are NaN without any number; the half is NaN for a single one. If a number is infinite the
    mean is, and has no interval.
    """
    if np.isinf(x).any():
        return float(x[np.isinf(x)].sum()), np.nan
    x = x[np.isfinite(x)]
    if not x.size:
        return np.nan, np.nan
    half = stdtrit(x.size - 1, 0.975) * x.std(ddof=1) / np.sqrt(x.size) if x.size > 1 else np.nan
    return float(x.mean()), float(half)


def scaled(metric: str, x: np.ndarray) -> np.ndarray:
    """Return log10 of a metric above zero, and others as they are; NaN for no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log10(x) if metric in LOG else x
    return np.where(np.isfinite(x), x, np.nan)


def center(metric: str, x: np.ndarray) -> tuple[float, float, float]:
    """Return the mean, geometric where `scaled` takes logarithms, and its 95 % interval."""
    mean, half = mean_interval(scaled(metric, x))
    low, high = mean - half, mean + half
    return (10.0**mean, 10.0**low, 10.0**high) if metric in LOG else (mean, low, high)


def between(metric: str, x: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of a metric's numbers over seeds and the ends of its 95 % interval.

    Metrics above zero have the geometric mean and the t interval of their logarithms, which ends
    above zero; where one of them is 0, the mean and an interval from 0 on. An infinite number makes
    the mean infinite, without an interval.
    """
    finite = x[np.isfinite(x)]
    if metric in LOG and (finite > 0).all() and not np.isinf(x).any():
        return center(metric, finite)
    mean, half = mean_interval(x)
    low = mean - half
    return mean, max(low, 0.0) if metric in LOG and low < 0 else low, mean + half


def size(frame: Frame, result: str = "out") -> str:
    """Return the metric of how far a result is off: relative rms, absolute where that is missing.

    It is missing if the cells that have one are not those that have an absolute one, as where the
    reference is 0.
    """
    of = "" if result == "out" else f"{result}_"
    absolute, relative = f"{of}rms", f"{of}rel_rms"
    is_there = np.isfinite(scaled(relative, frame.metric(relative)))
    needed = np.isfinite(scaled(absolute, frame.metric(absolute)))
    return relative if is_there.any() and (is_there == needed).all() else absolute


def size_words(metric: str) -> str:
    """Return what `size` named in words."""
    return "relative rms" if metric.endswith("rel_rms") else "absolute rms"


def shares(frame: Frame, metric: str = "") -> Shares:
    """Return what each axis explains of the `scaled` metric over all cells that have it.

    Without a metric it is the `size` of the output's error.
    """
    metric = metric or size(frame)
    y = scaled(metric, frame.metric(metric))
    use = np.isfinite(y)
    y, codes, condition = y[use], frame.codes[use], frame.condition[use]
    seeds = numbered(frame.seeds()[use])
    whole = float(((y - y.mean()) ** 2).sum()) if y.size else 0.0
    if whole <= 1e-24 * float((y * y).sum()):
        whole = 0.0  # the values are equal but for the rounding of their mean
    found = [
        _effect(axis, y, codes[:, i], seeds, whole, len(frame.axes))
        for i, axis in enumerate(frame.axes)
    ]
    inside = _within(y, condition)
    repeated = y.size > np.unique(condition).size
    return Shares(
        effects=tuple(sorted(found, key=lambda e: -e.share)),
        seeds=inside / whole if whole and repeated else np.nan,
        cells=int(y.size),
        crossed=np.unique(condition).size
        == np.prod([len(a.values) for a in frame.axes], dtype=float),
    )


def joint_share(frame: Frame, metric: str, a: Axis, b: Axis) -> float:
    """Return what two axes explain together beyond each, which is their interaction if crossed."""
    y = scaled(metric, frame.metric(metric))
    use = np.isfinite(y)
    y, x, z = y[use], frame.code(a)[use], frame.code(b)[use]
    whole = float(((y - y.mean()) ** 2).sum()) if y.size else 0.0
    if not whole:
        return 0.0
    both = _between(y, x * len(b.values) + z)
    return max(0.0, (both - _between(y, x) - _between(y, z)) / whole)


def fold(frame: Frame, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the axis that have a `size`, and its mean, `scaled`, at each."""
    metric = size(frame)
    y, code = scaled(metric, frame.metric(metric)), frame.code(axis)
    means = {int(c): float(np.nanmean(y[code == c])) for c in np.unique(code[np.isfinite(y)])}
    return np.array(list(means), dtype=int), np.array(list(means.values()))


def idle(frame: Frame) -> list[str]:
    """Return the labels of the axes that changed no bit of a metric.

    That is so in every pair of cells that differ in this axis alone. Cells with NaN or infinite
    results take no part: two infinite errors are equal, and say nothing.
    """
    kept = ~lost(frame).cells
    if not frame.axes or not kept.any():
        return []
    results = together([bits(frame.metric(name)[kept]) for name in METRICS])
    seeds, codes = numbered(frame.seeds()[kept]), [frame.code(axis)[kept] for axis in frame.axes]
    found = []
    for i, axis in enumerate(frame.axes):
        place = together([*codes[:i], *codes[i + 1 :], seeds])
        places, outcomes = (int(x.max()) + 1 for x in (place, together([place, results])))
        if places == outcomes and places < len(place):
            found.append(axis.label)
    return found


def changed_nothing(labels: Sequence[str], are_some_lost: bool) -> list[str]:
    """Return one sentence for each axis; are_some_lost: whether cells had to be left out."""
    of = " where results are finite" if are_some_lost else ""
    return [f"{label} changed nothing: all metrics are equal, to the bit{of}" for label in labels]


def _effect(
    axis: Axis, y: np.ndarray, code: np.ndarray, seeds: np.ndarray, whole: float, tests: int
) -> Effect:
    """Return the effect of an axis, and the share that noise alone could give.

    The noise is that of the values' means by seed: one seed's cells share their input and count as
    one.
    """
    if not whole:
        return Effect(axis=axis, share=0.0, limit=np.nan)
    by_seed = together([code, seeds])
    levels = np.unique(code).size
    free = int(by_seed.max()) + 1 - levels
    if free < 1 or levels < 2:
        return Effect(axis=axis, share=_between(y, code) / whole, limit=np.nan)
    noise = (_between(y, by_seed) - _between(y, code)) / free
    quantile = fdtri(levels - 1, free, 1 - FALSE_ALARMS / tests)
    return Effect(
        axis=axis,
        share=_between(y, code) / whole,
        limit=float((levels - 1) * noise * quantile / whole),
    )


def _between(y: np.ndarray, group: np.ndarray) -> float:
    """Return the sum of squares between groups; one that is only rounding error becomes 0."""
    whole = float(((y - y.mean()) ** 2).sum()) if y.size else 0.0
    between = whole - _within(y, group)
    return between if between > 1e-12 * whole else 0.0


def _within(y: np.ndarray, group: np.ndarray) -> float:
    if not y.size:
        return 0.0
    number = np.unique(group, return_inverse=True)[1].reshape(-1)
    means = np.bincount(number, y) / np.bincount(number)
    return float(((y - means[number]) ** 2).sum())
