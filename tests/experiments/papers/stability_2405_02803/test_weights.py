"""Weight metrics of arXiv 2405.02803 against values worked out by hand, scipy, and their laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from roundscope.experiments.framework.estimates import mean, slope
from roundscope.experiments.papers.stability_2405_02803.trainings import (
    distances,
    max_difference,
    wasserstein,
)

numbers = st.lists(st.integers(-1000, 1000).map(lambda i: i / 8), min_size=1, max_size=40).map(
    np.array
)


def tree(seed, shift=0.0):
    random = np.random.default_rng(seed)
    return {
        "block": [{"w": random.standard_normal((3, 4)) + shift}, {"w": random.standard_normal(5)}],
        "head": random.standard_normal(2),
    }


def test_by_hand():
    """Catches a mean for a maximum, and a distance of entries where one of distributions is
    meant.
    """
    a, b = np.array([0.0, 1.0, 5.0]), np.array([[2.0, 0.0, 1.0]]).reshape(3)
    assert max_difference(a, b) == 4.0  # |0-2|, |1-0|, |5-1|
    assert wasserstein(a, b) == pytest.approx((0 + 0 + 3) / 3)  # sorted 0 1 5 and 0 1 2


@settings(deadline=None, max_examples=50)
@given(numbers, st.integers(-64, 64).map(lambda i: i / 4), st.randoms(use_true_random=False))
def test_laws(a, shift, random):
    """Catches an asymmetric, order-dependent or unscaled distance: W1 of a shifted copy is the
    shift, of a permutation 0.
    """
    order = random.sample(range(a.size), a.size)
    assert wasserstein(a, a) == max_difference(a, a) == 0.0
    assert wasserstein(a, a + shift) == max_difference(a, a + shift) == abs(shift)
    assert wasserstein(a, a[order]) == 0.0
    b = a[order] + shift
    assert wasserstein(a, b) == wasserstein(b, a) <= max_difference(a, b) == max_difference(b, a)
    assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a, b), abs=1e-9)


def test_max_difference_sees_a_permutation():
    """Catches a maximum taken between sorted entries."""
    assert (
        max_difference([1.0, 2.0], [2.0, 1.0]) == 1.0 and wasserstein([1.0, 2.0], [2.0, 1.0]) == 0.0
    )


def test_low_precision_and_not_finite():
    """Catches differences taken in the tensors' own format, and a NaN that max() would hide."""
    a, b = np.array([2048.0, 1.0], dtype=np.float16), np.array([2049.0, 1.0])
    assert max_difference(a, b) == 1.0 and wasserstein(a, b) == 0.5
    for bad in (math.nan, math.inf):
        assert math.isnan(max_difference([1.0, bad], [1.0, bad])) and math.isnan(
            wasserstein([1.0, bad], [1.0, 2.0])
        )


def test_tensors_are_named_by_path():
    """Catches tensors that are skipped, renamed or compared with another."""
    a, b = tree(0), tree(0)
    b["block"][1]["w"] = b["block"][1]["w"] + 0.5
    found = distances(a, b)
    assert [(d.name, d.size) for d in found] == [("block.0.w", 12), ("block.1.w", 5), ("head", 2)]
    assert [d.max_difference for d in found] == pytest.approx([0.0, 0.5, 0.0])
    assert [d.wasserstein for d in found] == pytest.approx([0.0, 0.5, 0.0])
    assert distances(np.ones(2), np.zeros(2))[0].name == "weights"


def test_trees_that_differ():
    """Catches a comparison of what the two runs happen to share."""
    with pytest.raises(ValueError, match="only one run has extra"):
        distances(tree(0), tree(0) | {"extra": np.ones(1)})
    with pytest.raises(ValueError, match=r"tensor w: shapes \(2,\) and \(3,\)"):
        distances({"w": np.ones(2)}, {"w": np.ones(3)})


def test_slope_and_interval_by_hand():
    """Catches a slope through the origin, a normal quantile in place of Student's, and the wrong
    number of freedoms.
    """
    assert slope([10, 20, 30], [5.0, 7.0, 9.0]) == pytest.approx(0.2)
    assert slope([0, 1, 2], [0.0, 1.0, 0.0]) == 0.0
    i = mean(dict(enumerate([1.0, 2.0, 3.0])))  # t(0.975, 2) = 4.302653, s / sqrt(3) = 0.577350
    assert (i.mean, i.low, i.high, i.seeds) == pytest.approx(
        (2.0, 2.0 - 2.484138, 2.0 + 2.484138, 3), abs=1e-6
    )
    assert math.isnan(mean({0: 1.0}).high)  # one repeat gives none, and decides nothing
