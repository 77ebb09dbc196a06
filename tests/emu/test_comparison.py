"""The comparison of two results, by hand: what is not finite decides, and is never left out."""

import math

import numpy as np
import pytest

from roundscope.emu.stats.comparison import agree, deviations, gain, is_lost, lost, relative_rms

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("own", "want", "is_apart"),
    [
        (1.0, 2.0, False),
        (INF, INF, False),
        (NAN, NAN, False),
        (INF, -INF, True),
        (INF, NAN, True),
        (NAN, INF, True),
        (INF, 1.0, True),
        (NAN, 1.0, True),
        (1.0, INF, True),
        (1.0, NAN, True),
    ],
)
def test_what_is_lost(own: float, want: float, is_apart: bool) -> None:
    """A pair of which one is not finite is lost unless both are the same: no mean leaves it out."""
    a, b = np.array([1.0, own]), np.array([1.0, want])
    assert is_lost(a, b).tolist() == [False, is_apart]
    assert bool(lost(a, b)) is is_apart
    assert math.isinf(relative_rms(a, b)) is is_apart
    assert math.isnan(gain(a, b)) is is_apart
    assert math.isinf(deviations(a, b)[1]) is is_apart


def test_counts_and_the_first_place() -> None:
    """Counts tell NaN, infinities and unduly finite numbers apart; the first is in the order of
    the array.
    """
    own = np.array([[1.0, 2.0, NAN], [INF, -INF, 0.0]])
    want = np.array([[1.0, 2.0, 3.0], [INF, 1.0, NAN]])
    found = lost(own, want)
    assert (found.nan, found.infinite, found.missed, found.of) == (1, 1, 1, 6)
    assert found.first == (0, 2)
    assert found.count == 3
    assert not lost(want, want)
    assert lost(want).count == 2


def test_a_shared_infinity_has_no_error_and_no_size() -> None:
    """Where both are infinite, the error is that of the other entries, in their own size."""
    assert agree(np.array([INF, NAN]), np.array([INF, NAN])).all()
    assert relative_rms(np.array([INF, 3.0]), np.array([INF, 2.0])) == 0.5
    assert gain(np.array([INF, 3.0]), np.array([INF, 2.0])) == 0.5
