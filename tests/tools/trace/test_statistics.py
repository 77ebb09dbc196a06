"""Bias and its nulls, against independent formulas."""

import math

import numpy as np
import pytest

from roundscope.emu.formats.format import format_named
from roundscope.emu.stats.summary import Stats
from roundscope.tools.trace.analysis import bias as analysis
from roundscope.tools.trace.analysis import consequences
from roundscope.tools.trace.analysis.bias import mean_error, threshold


def test_z_is_the_formula_and_its_null_is_standard_normal():
    random = np.random.default_rng(0)
    rows = random.standard_normal(50)
    assert mean_error([rows], 500).z == pytest.approx(rows.sum() / math.sqrt((rows**2).sum()))
    flipped = [mean_error([rows * random.choice([-1, 1], 50)], 500).z for _ in range(4000)]
    assert abs(np.mean(flipped)) < 0.06 and np.std(flipped) == pytest.approx(1.0, abs=0.04)


def test_the_widest_null_counts():
    rows, values = np.ones(100), np.array([60.0, 40.0])
    assert mean_error([rows], 1000).z == pytest.approx(10.0)
    assert mean_error([rows, values], 1000).z == pytest.approx(100 / math.hypot(60, 40))
    assert mean_error([rows], 1000, independent=1e4).z == pytest.approx(1.0)
    assert mean_error([np.zeros(3)], 9).z == 0.0


def test_standard_error_is_that_of_the_rows():
    random = np.random.default_rng(1)
    errors = [mean_error([random.normal(0.3, 1.0, 400)], 400) for _ in range(300)]
    assert np.mean([e.se for e in errors]) == pytest.approx(
        np.std([e.mean for e in errors]), rel=0.1
    )


@pytest.mark.parametrize(("bias", "leans"), [(0.05, True), (-0.05, True), (0.0, False)])
def test_planted_bias_is_found_and_none_is_not(bias, leans):
    random = np.random.default_rng(2)
    errors = random.uniform(-0.5, 0.5, (1, 3, 200, 32)) + bias
    rows, even = errors.sum(-1), np.zeros((1, 3, 200))
    e = analysis.event("O", format_named("bf16"), _stats(errors), rows, even, threshold(30))
    assert e.is_biased is e.signed.is_biased is leans and not e.away.is_biased
    found = e.signed.error
    assert found.mean == pytest.approx(errors.mean())
    assert not leans or math.copysign(1, found.z) == math.copysign(1, bias)
    assert found.se == pytest.approx(errors.std() / math.sqrt(errors.size), rel=0.1)
    outward = analysis.event("O", format_named("bf16"), _stats(errors), even, rows, threshold(30))
    assert outward.away.error == found and outward.is_biased is leans
    assert not outward.signed.is_biased


def test_errors_that_agree_inside_a_row_do_not_pass_for_bias():
    """Each row's 32 errors are equal: 200 coins, not 6400."""
    random = np.random.default_rng(4)
    zs = []
    for _ in range(200):
        errors = np.repeat(random.uniform(-0.5, 0.5, (1, 1, 200, 1)), 32, -1)
        rows = errors.sum(-1)
        e = analysis.event("O", format_named("bf16"), _stats(errors), rows, rows, 3.3)
        zs.append(e.signed.error.z)
    assert np.std(zs) == pytest.approx(1.0, abs=0.15)


def _stats(errors):
    """Stats (B, N) of errors (B, N, T, H) in ulps."""
    zero = np.zeros(errors.shape[:2], np.int64)
    n, axes = zero + errors[0, 0].size, (2, 3)
    fields = dict.fromkeys(Stats.__dataclass_fields__, zero) | {
        "n": n,
        "inexact": n,
        "ulps": errors.sum(axes),
        "abs_ulps": np.abs(errors).sum(axes),
        "sq_ulps": (errors**2).sum(axes),
        "peak": np.abs(errors).max(axes),
    }
    return Stats(**fields)


def test_threshold_is_bonferroni():
    from scipy.stats import norm

    for tests in (1, 30, 400):
        assert 2 * tests * norm.sf(threshold(tests)) == pytest.approx(analysis.FALSE_ALARMS)


def test_difference():
    d = consequences.difference(np.array([1.0, 2.0, np.nan]), np.array([1.0, 4.0, np.nan]))
    assert (d["max_abs"], d["mean"], d["not_finite"]) == (2.0, pytest.approx(-2 / 3), 0)
    assert d["relative_rms"] == pytest.approx(2.0 / np.sqrt(17.0))


def test_a_difference_that_is_not_finite_is_infinite():
    """An infinite output that is left out, so that the error of the others stands for all."""
    d = consequences.difference(np.array([1.0, np.inf]), np.array([1.0, 1.0]))
    assert d["max_abs"] == d["rms"] == d["relative_rms"] == np.inf and d["not_finite"] == 1
    assert np.isnan(d["mean"])


def test_delta_that_is_not_finite_has_no_sum_and_the_other_heads_have():
    """NaN that counts as 0, so that delta "equals that of exact"."""
    do, out = np.ones((1, 8, 2, 3)), np.zeros((1, 8, 2, 3))
    delta = np.full((1, 8, 2), 0.5)
    delta[0, 3, 0] = np.nan
    d = consequences.delta_drift(delta, np.zeros((1, 8, 2)), out, out, do)
    assert d.lost == 1 and np.isnan(d.z[0, 0]) and d.worst == (0, 1)
    assert d.z[0, 1] == pytest.approx(np.sqrt(8.0)) and d.overall.mean == pytest.approx(0.5)


def test_share_of_rows_with_several_ones():
    away = np.zeros((1, 1, 2, 50))
    several = np.zeros((1, 1, 2, 50), dtype=bool)
    several[..., 0, :10] = True
    away[several], away[..., 1, :] = 3.0, 0.6
    s = consequences.share("O", away, away, several, np.ones((2, 50), dtype=bool), 4)
    assert s.events == (40, 360) and s.share == pytest.approx(0.5)
    assert s.away[0].mean == pytest.approx(0.75) and s.away[1].mean == pytest.approx(30 / 360)
