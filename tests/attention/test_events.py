"""What the hook's text says of its two roundings: of the operation to binary64, and of its result
to the site's format.
"""

from fractions import Fraction

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine


def event(site, plan, q, k):
    """(before, after) of the event at query 0 and the last key, of one head; scores are q k,
    unscaled.
    """
    arrays = [np.array(x, np.float32)[None, :, None, :] for x in (q, k, np.ones((len(k), 1)))]
    pair = examine(
        *arrays, plan=plan, scale=1.0, engine="numpy", record=Record(events=(site,))
    ).trace.events[site]
    return [x[0, 0, 0, -1] for x in pair]


@pytest.mark.parametrize("mode", ["toward-positive", "toward-zero", "to-odd"])
def test_a_difference_beyond_binary64_rounds_twice(mode):
    """X = 2^-60 - 1: a repair, or the end of it, that the docstring of `Events` does not follow."""
    plan = Plan.preset("fp32").at("X", "fp32", mode)
    before, after = event(Site.X, plan, [[1.0, 1.0]], [[1.0, 0.0], [2.0**-60, 0.0]])
    assert Fraction(2) ** -60 - 1 > Fraction(before) == -1
    assert after == -1.0


@pytest.mark.parametrize("mode", ["toward-positive", "toward-zero", "to-odd"])
def test_a_difference_that_binary64_holds_rounds_once(mode):
    """X = 2^-40 - 1, between -1 and the number above it, whose last bit is odd."""
    plan = Plan.preset("fp32").at("X", "fp32", mode)
    before, after = event(Site.X, plan, [[1.0, 1.0]], [[1.0, 0.0], [2.0**-40, 0.0]])
    assert Fraction(before) == Fraction(2) ** -40 - 1
    assert after == -1.0 + 2.0**-24


def test_a_difference_of_equal_numbers_is_positive_zero():
    plan = Plan.preset("fp32").at("X", "fp32", "toward-negative")
    before, after = event(Site.X, plan, [[1.0]], [[3.0]])
    assert before == after == 0.0 and not np.signbit(after)
