"""Estimates over seeds with 95 % t intervals: means, ratios of pairs, exponents of growth."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from roundscope.tools.sweep.report.effects import mean_interval

Values = Mapping[int, float]  # seed -> number
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds and the ends of its 95 % t interval, NaN where one seed has none."""

    mean: float
    low: float
    high: float
    seeds: int

    def inside(self, low: float, high: float) -> bool:
        """Return whether the whole interval is between low and high; False if there is none."""
        return bool(self.low >= low and self.high <= high)

    def outside(self, low: float, high: float) -> bool:
        """Return whether no part of the interval is between low and high; False if it has none."""
        return bool(self.high < low or self.low > high)


def mean(values: Values) -> Estimate:
    """Return the arithmetic mean of the finite numbers."""
    x = np.array([v for v in values.values() if math.isfinite(v)])
    centre, half = mean_interval(x)
    return Estimate(mean=centre, low=centre - half, high=centre + half, seeds=x.size)


def factor(values: Values) -> Estimate:
    """Return the geometric mean of the numbers above zero; others are left out."""
    logs = mean({seed: math.log(v) for seed, v in values.items() if math.isfinite(v) and v > 0})
    return Estimate(
        mean=_exp(logs.mean), low=_exp(logs.low), high=_exp(logs.high), seeds=logs.seeds
    )


def positive(values: Values) -> Estimate:
    """Return the mean of numbers that cannot be below zero, as no end of its interval is.

    It is geometric where all of them are above zero. Where some are 0, such as shares of a count,
    it is arithmetic, and the interval begins at 0 where that of the mean would reach below.
    """
    if all(v > 0 for v in values.values() if math.isfinite(v)):
        return factor(values)
    e = mean(values)
    return e if math.isnan(e.low) else replace(e, low=max(e.low, 0.0))


def ratio(over: Values, under: Values) -> Estimate:
    """Return the geometric mean of over / under, paired by seed, since both had the same inputs."""
    return factor(
        {seed: over[seed] / under[seed] for seed in over if seed in under and under[seed] > 0}
    )


def exponent(x: Sequence[float], series: Sequence[Values]) -> Estimate:
    """Return b of series ~ x^b: the mean over shared seeds of the logarithms' slopes."""
    if len(x) < 2:
        return Estimate(mean=math.nan, low=math.nan, high=math.nan, seeds=0)
    shared = set.intersection(*(set(values) for values in series))
    return mean({seed: _power(x, [values[seed] for values in series]) for seed in sorted(shared)})


def slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Return the least-squares slope of y (K,) over x (K,), for a line with an intercept."""
    a = np.asarray(x, dtype=np.float64)
    a = a - a.mean()
    return float(a @ np.asarray(y, dtype=np.float64) / (a @ a))


def _power(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of log y over log x; NaN if a y is not above zero."""
    if not all(math.isfinite(v) and v > 0 for v in y):
        return math.nan
    return slope(np.log(x), np.log(y))


def _exp(x: float) -> float:
    return math.exp(x) if math.isfinite(x) else math.nan


def relative_error(own: np.ndarray, exact: np.ndarray) -> float:
    """Return |own - exact| / |exact|, of root mean squares."""
    return float(np.sqrt(np.square(own - exact).sum() / np.square(exact).sum()))


def gain(own: np.ndarray, exact: np.ndarray) -> float:
    """Return <own - exact, exact> / |exact|^2; below 0, the result is too short."""
    return float(((own - exact) * exact).sum() / np.square(exact).sum())


def grouped(items: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return values by key, both in their order."""
    found: dict[K, list[V]] = {}
    for key, value in items:
        found.setdefault(key, []).append(value)
    return found
