"""Estimates and the rule that turns them into words, on numbers with known answers."""

import math

import numpy as np
import pytest

from roundscope.experiments.framework.estimates import (
    Estimate,
    exponent,
    factor,
    mean,
    positive,
    ratio,
)
from roundscope.experiments.framework.figures.series import series, upwards
from roundscope.experiments.framework.verdicts import (
    GROWS,
    SAME,
    SMALLER,
    TENFOLD,
    Word,
    interval,
    judge,
    together,
)
from roundscope.tools.report.pictures import canvas

NAN = math.nan


def estimate(low, high):
    return Estimate(mean=(low + high) / 2, low=low, high=high, seeds=8)


def test_mean_and_its_interval():
    """Catches a normal interval instead of Student's, and a NaN that is averaged."""
    found = mean({0: 1.0, 1: 3.0, 2: NAN})
    assert (found.mean, found.seeds) == (2.0, 2)
    assert found.high - found.mean == pytest.approx(12.7062)  # t(1) = 12.7062, standard error 1


@pytest.mark.parametrize("values", [{0: 2.0}, {0: 2.0, 1: NAN}])
def test_one_seed_has_a_mean_and_no_interval(values):
    """Catches an interval of width 0, which would decide every claim."""
    found = mean(values)
    assert (
        found.mean == 2.0
        and math.isnan(found.low)
        and not found.inside(0, 10)
        and not found.outside(5, 10)
    )
    assert interval(found, "x") == "2x"


def test_nothing_measured_gives_nan():
    """Catches an error, or a zero, where there is no number."""
    assert (
        math.isnan(mean({}).mean)
        and math.isnan(factor({0: 0.0}).mean)
        and factor({0: 0.0, 1: math.inf}).seeds == 0
    )


def test_ratios_pair_seeds_and_are_geometric():
    """Catches ratios of means, pairs by position, and zero in the denominator."""
    found = ratio({0: 2.0, 1: 8.0, 3: 5.0, 4: 1.0}, {1: 1.0, 0: 1.0, 4: 0.0})
    assert found.mean == pytest.approx(4.0) and found.seeds == 2


def test_exponent_of_a_power():
    """Catches slopes of values instead of logarithms, and seeds that miss a length."""
    found = exponent(
        (16, 64, 256),
        [{s: (1 + s) * t**0.5 for s in range(4 if t < 256 else 3)} for t in (16, 64, 256)],
    )
    assert found.mean == pytest.approx(0.5) and found.seeds == 3
    assert math.isnan(exponent((16,), [{0: 1.0}]).mean)
    assert math.isnan(exponent((16, 64), [{0: 1.0}, {0: 0.0}]).mean)


@pytest.mark.parametrize(
    ("low", "high", "holds", "word"),
    [
        (8, 12, TENFOLD, Word.AGREES),
        (1.1, 1.3, TENFOLD, Word.CONTRADICTS),
        (25, 30, TENFOLD, Word.CONTRADICTS),
        (4, 6, TENFOLD, Word.UNDECIDED),
        (0.1, 0.3, GROWS, Word.AGREES),
        (-0.3, -0.1, GROWS, Word.CONTRADICTS),
        (-0.01, 0.01, GROWS, Word.CONTRADICTS),
        (0.04, 0.3, GROWS, Word.UNDECIDED),
        (1.0, 1.0, SAME, Word.AGREES),
        (0.97, 0.99, SMALLER, Word.CONTRADICTS),
        (NAN, NAN, GROWS, Word.UNDECIDED),
    ],
)
def test_the_whole_interval_decides(low, high, holds, word):
    """Catches a rule that looks at the mean alone, and one that takes no interval for a wide
    one.
    """
    assert judge(estimate(low, high), holds) is word


def test_several_conditions_together():
    """Catches a contradiction that is outvoted, and doubt that is dropped."""
    yes, no, open_ = Word.AGREES, Word.CONTRADICTS, Word.UNDECIDED
    assert together([yes, yes]) is yes and together([no, no]) is no
    assert (
        together([yes, no]) is Word.DEPENDS
        and together([yes, open_]) is open_
        and together([open_]) is open_
    )


@pytest.mark.parametrize("count", [2, 3, 30])
def test_no_end_of_an_interval_of_positive_numbers_is_below_zero(count):
    """0.0094 [-0.021, 0.04] of two seeds; shares of which some are 0."""
    rng = np.random.default_rng(count)
    for spread in (0.1, 1.0, 3.0):
        x = dict(enumerate(np.exp(spread * rng.standard_normal(count))))
        e = positive(x)
        assert 0.0 < e.low < e.mean < e.high and e == factor(x)
        with_zero = positive(x | {0: 0.0})
        assert 0.0 <= with_zero.low < with_zero.mean == mean(x | {0: 0.0}).mean
    assert positive({0: 2.0}).mean == pytest.approx(2.0) and math.isnan(positive({0: 0.0}).low)


def test_bars_do_not_run_off_a_logarithmic_axis():
    """A bar to below zero, which such an axis draws down to its lower end."""
    ax = canvas(2.0)[1][0, 0]
    series(ax, [1.0, 2.0], [{0: 1e-3, 1: 0.5}, {0: 1e-2, 1: 2e-2}], label="", color="k", marker="o")
    upwards(ax)
    ends = np.concatenate([s[:, 1] for c in ax.collections for s in c.get_segments()])
    assert ax.get_yscale() == "log" and ends.size == 4 and (ends > 0).all()
