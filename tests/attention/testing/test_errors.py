"""Errors of results: planted sizes, gains, means and rows are measured as what they are."""

import numpy as np
import pytest

from roundscope.attention.testing.errors import LEAST_ROW, differences, errors

RNG = np.random.default_rng(4)
WANT = RNG.standard_normal((2, 6, 3, 4))


def test_heads_are_in_the_order_of_entries_and_heads():
    """The error of a head under the number of another."""
    own = WANT.copy()
    own[1, :, 2] *= 1.25
    assert np.argwhere(errors(own, WANT).rms).tolist() == [[5]]


@pytest.mark.parametrize("gain", [0.01, -0.25])
def test_a_result_that_is_too_long(gain):
    """A gain of the wrong sign, or in another unit."""
    found = errors(WANT * (1 + gain), WANT)
    np.testing.assert_allclose(found.gain, gain)
    np.testing.assert_allclose(found.rms, abs(gain))
    np.testing.assert_allclose(found.row, abs(gain))


def test_an_error_across_the_result_has_no_gain():
    """A gain that is only another name for the size of the error."""
    want = np.zeros((1, 2, 1, 2))
    want[0, :, 0] = [[3.0, 0.0], [0.0, 4.0]]
    across = np.zeros_like(want)
    across[0, :, 0] = [[0.0, 1.0], [-1.0, 0.0]]
    found = errors(want + across, want)
    assert found.gain.tolist() == [0.0]
    assert found.rms == pytest.approx(np.sqrt(2.0) / 5.0)
    assert found.row == pytest.approx(1 / 3)
    assert found.at.tolist() == [0]


def test_a_result_that_is_too_high():
    """A mean error that cancels, or in another unit."""
    found = errors(WANT + 0.125, WANT)
    mean = 0.125 * 24 / np.abs(WANT).sum((1, 3)).reshape(-1)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(errors(WANT - 0.125, WANT).mean, -mean)


def test_the_worst_row_and_its_token():
    """A bad row that the mean of a head hides, or the token of another row."""
    own = WANT.copy()
    own[0, 4, 1] *= 3.0
    found = errors(own, WANT)
    assert found.row[1] == pytest.approx(2.0)
    assert found.at[1] == 4
    assert np.count_nonzero(found.row) == 1


def test_a_row_of_little_weight_counts_as_a_larger_one():
    """A row of zeros whose tiny error would be infinite."""
    want = np.zeros((1, 4, 1, 4))
    want[0, :3] = 1.0
    own = want.copy()
    own[0, 3] = 1e-3
    usual = np.sqrt((want**2).sum() / 4)
    assert errors(own, want).row == pytest.approx(2e-3 / (LEAST_ROW * usual))


@pytest.mark.parametrize(("own", "want"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf)])
def test_a_number_that_is_lost_makes_the_errors_of_its_head_infinite(own, want):
    """A NaN that is left out, so that a head of NaN has the error 0."""
    result, exact = WANT * 1.5, WANT.copy()
    result[1, 3, 2, 0], exact[1, 3, 2, 0] = own, want
    found = errors(result, exact)
    assert found.rms[5] == found.row[5] == np.inf and found.at[5] == 3
    assert np.isnan(found.gain[5]) and np.isnan(found.mean[5])
    for name in ("rms", "row", "gain"):
        np.testing.assert_allclose(getattr(found, name)[:5], 0.5)
    fine = errors(WANT * 1.5, WANT)
    assert np.isfinite(differences(found, fine)["rms"]).all()
    assert differences(found, fine)["rms"][5] > 20 and differences(found, found)["rms"][5] == 0


def test_the_same_infinity_in_both_results_is_no_error():
    """Inputs with an infinity by design, for which a right kernel would fail."""
    result, exact = WANT * 1.5, WANT.copy()
    result[0, 0, 0], exact[0, 0, 0] = np.nan, np.nan
    result[0, 1, 0, 1] = exact[0, 1, 0, 1] = -np.inf
    np.testing.assert_allclose(errors(result, exact).rms, 0.5)


def test_an_exact_result_of_zeros_has_no_scale():
    """A division by zero where dQ of a single key is 0."""
    found = errors(np.ones((1, 2, 1, 2)), np.zeros((1, 2, 1, 2)))
    assert [getattr(found, n).tolist() for n in ("rms", "gain", "mean")] == [[0.0]] * 3


def test_differences_are_of_a_kernel_less_a_plan():
    """A sign that lets worse kernels pass, or a unit other than the plan's error."""
    plan, kernel = errors(WANT * 1.01, WANT), errors(WANT * 1.03, WANT)
    found = differences(kernel, plan)
    np.testing.assert_allclose(found["rms"], np.log(3.0))
    np.testing.assert_allclose(found["row"], np.log(3.0))
    np.testing.assert_allclose(found["gain"], 2.0)
    perfect = errors(WANT, WANT)
    assert all(np.isfinite(d).all() for d in differences(kernel, perfect).values())
    assert not any(d.any() for d in differences(perfect, perfect).values())
