"""The bound of chance against all patterns of signs, and the rate of false alarms."""

import math

import numpy as np
import pytest

from roundscope.attention.testing.comparison import State, chance, heads_needed, weigh

MAGNITUDES = {
    "equal": np.ones(12),
    "one": np.ones(1),
    "geometric": 0.5 ** np.arange(12.0),
    "one large": np.r_[np.ones(11), 100.0],
    "heavy tails": np.abs(np.random.default_rng(1).standard_cauchy(12)),
    "skewed": np.exp(2 * np.random.default_rng(2).standard_normal(11)),
}


@pytest.mark.parametrize("sizes", MAGNITUDES.values(), ids=MAGNITUDES)
def test_the_bound_holds_for_all_patterns_of_signs(sizes):
    """A chance that is smaller than the true probability: alarms beyond the stated rate."""
    n = sizes.size
    signs = 1.0 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    totals = np.sort(signs @ sizes)
    for pattern in signs[:: max(1, 2**n // 512)]:
        x = pattern * sizes
        beyond = totals.size - np.searchsorted(totals, x.sum() - 1e-9)
        assert beyond / totals.size <= chance(x) * (1 + 1e-12)


def test_the_bound_is_hoeffdings():
    """A bound that holds because it says nothing."""
    x = np.array([3.0, 1.0, -1.0, 2.0])
    assert chance(x) == pytest.approx(math.exp(-(5.0**2) / (2 * 15.0)))
    assert chance(-x) == chance(np.zeros(3)) == 1.0
    assert chance(np.ones(20)) == pytest.approx(math.exp(-10.0))
    assert chance(np.full(20, np.inf)) == pytest.approx(math.exp(-10.0))
    assert chance(1e-150 * np.ones(20)) == pytest.approx(math.exp(-10.0), rel=1e-6)


@pytest.mark.parametrize("level", [0.3, 0.05, 1e-4, 1e-7])
def test_so_many_heads_are_needed(level):
    """A comparison that can never raise an alarm, or a call refused that could."""
    n = heads_needed(level)
    assert chance(np.ones(n)) <= level < chance(np.ones(n - 1))


def test_states():
    """An alarm where nothing is clear, an answer that stays open for ever, or a margin ignored."""
    rng = np.random.default_rng(5)
    d = 1.0 + 0.1 * rng.standard_normal(50)
    assert weigh(d, 0.5, 1e-4).state is State.ALARM
    assert weigh(d, 1.0, 1e-4).state is State.OPEN
    assert weigh(d, 1.5, 1e-4).state is State.FINE
    assert weigh(-d, 0.5, 1e-4).state is State.FINE
    assert weigh(d[:1], 0.5, 1e-4).state is State.OPEN
    assert weigh(np.zeros(40), 0.02, 1e-4).state is State.FINE
    assert weigh(np.full(40, np.inf), 0.02, 1e-4).state is State.ALARM


def test_the_mean_and_its_error():
    """Numbers of a report that are not the mean and its standard error."""
    found = weigh(np.array([1.0, 2.0, 3.0, 6.0]), 0.0, 1e-4)
    assert found.mean == 3.0
    assert found.error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))


DIFFERENCES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n),
    "skewed sizes": lambda rng, n: np.exp(2 * rng.standard_normal(n)) * rng.choice([-1, 1], n),
    "two points": lambda rng, n: rng.choice([-1.0, 1.0], n),
}


@pytest.mark.parametrize("draw", DIFFERENCES.values(), ids=DIFFERENCES)
def test_repeated_looks_stay_below_the_rate(draw):
    """Kernels as good as the plan that fail more often than is stated, since looks add up."""
    rate, looks, heads, runs = 0.05, 4, 12, 1500
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(runs):
        d = 0.3 + draw(rng, looks * heads)
        states = (weigh(d[: heads * (i + 1)], 0.3, rate / looks).state for i in range(looks))
        alarms += State.ALARM in states
    assert alarms <= rate * runs


def test_a_true_difference_is_found():
    """A test with a low rate of false alarms because it finds nothing."""
    rng = np.random.default_rng(9)
    found = [weigh(0.9 + rng.standard_normal(80), 0.0, 1e-4).state for _ in range(100)]
    assert found.count(State.ALARM) > 90
