"""The share of the drift over looks, and when it raises the alarm."""

import importlib

import numpy as np
import pytest

from roundscope.attention.models.alarm import KEPT, LOOKS, Alarm, Gains, Shares
from roundscope.attention.models.selection import Layer

A, B = Layer(name="blocks.0", number=0), Layer(name="blocks.1", number=1)


def looks(shares, drifts, gradient=10.0):
    """Feed looks of two heads in one layer; return the alarms."""
    return [
        shares.update(100 * n, {A: [0.0, d]}, {A: [gradient / 2, gradient / 2]})
        for n, d in enumerate(drifts)
    ]


def test_share_is_a_quotient_of_sums_that_fade():
    shares, x = Shares(None), np.random.default_rng(0).random((2, 7, 2, 3))
    for step, (drift, gradient) in enumerate(zip(*x, strict=True)):
        shares.update(step, dict(zip((A, B), drift, strict=True)),
                      dict(zip((A, B), gradient, strict=True)))  # fmt: skip
    weights = KEPT ** np.arange(6, -1, -1)
    made, whole = np.einsum("l,alnh->an", weights, x)
    assert shares.share() == pytest.approx(made.sum() / whole.sum(), rel=1e-14)
    assert list(shares.layers().values()) == pytest.approx(made / whole, rel=1e-14)


def test_the_alarm_comes_with_the_third_look_and_once():
    shares = Shares(0.01)
    alarms = looks(shares, [1.0] * 5)
    assert [alarm is not None for alarm in alarms] == [n == LOOKS - 1 for n in range(5)]
    assert shares.alarm == alarms[2]
    assert shares.alarm == Alarm(
        step=200, share=pytest.approx(0.1), threshold=0.01, layer=A, head=1
    )


@pytest.mark.parametrize(
    ("gains", "step"),
    [
        ([[-0.08, -0.05]] * 4, 2),
        ([[0.02, 0.03]] * 2 + [[-0.02, -0.03]] * 3, 4),
        ([[-0.08, 0.05]] * 4, None),  # heads that do not agree
        ([[-0.003, -0.003]] * 4, None),  # 16 bits toward zero
        ([[-0.08, -0.05], [np.nan, -0.05]] * 3, None),
        ([[-0.08, -0.05]] * 2 + [[0.0, 0.0]] + [[-0.08, -0.05]] * 2, None),
    ],
)
def test_the_alarm_of_the_gain_comes_with_three_looks_that_agree(gains, step):
    rows = Gains()
    alarms = [rows.update(n, {A: own, B: [0.0, 0.0]}) for n, own in enumerate(gains)]
    found = [alarm for alarm in alarms if alarm is not None]
    assert [alarm.step for alarm in found] == ([] if step is None else [step])
    for alarm in found:
        assert alarm.kind == "gain" and (alarm.layer, alarm.head) in ((A, 0), (A, 1))
        assert alarm.share == pytest.approx(np.mean(gains[step]))
        assert f"{abs(alarm.share):.2%} too short" in str(alarm)


def test_a_share_at_the_threshold_raises_none():
    shares = Shares(0.125)
    assert looks(shares, [1.25] * 5) == [None] * 5 and shares.share() == 0.125


def test_the_alarm_names_the_head_with_the_most():
    shares = Shares(0.01)
    for step in range(3):
        shares.update(step, {A: [1.0, 3.0], B: [2.0, 4.0]}, {A: [1.0, 1.0], B: [9.0, 9.0]})
    assert shares.alarm is not None and (shares.alarm.layer, shares.alarm.head) == (B, 1)
    assert "head 1 of layer 1 (blocks.1)" in str(shares.alarm)


def test_the_alarm_names_an_action():
    """An alarm that tells a leak and not what to do about it; both names exist."""
    alarm = Alarm(step=7, share=0.2, threshold=0.1, layer=A, head=1)
    assert "correct(model) of roundscope.torch" in str(alarm)
    assert "corrected(attention) of roundscope.jax" in str(alarm)
    assert callable(importlib.import_module("roundscope.attention.torch").correct)
    assert callable(importlib.import_module("roundscope.attention.jax").corrected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_look_that_is_not_finite_is_left_out(bad):
    """A step that loss scaling skips would make every later share NaN."""
    shares = Shares(0.01)
    looks(shares, [1e-3] * 3)
    before = shares.share()
    assert shares.update(300, {A: [0.0, 1.0]}, {A: [1.0, bad]}) is None
    assert (shares.share(), shares.looks) == (before, 3)


def test_no_threshold_no_alarm():
    shares = Shares(None)
    assert looks(shares, [5.0] * 5) == [None] * 5 and shares.share() == pytest.approx(0.5)


def test_before_the_first_look_and_without_gradients_there_is_no_share():
    shares = Shares()
    assert np.isnan(shares.share())
    looks(shares, [0.0] * 4, gradient=0.0)
    assert np.isnan(shares.share()) and shares.alarm is None


@pytest.mark.parametrize("threshold", [0.0, -1.0, 2.0, np.nan, np.inf])
def test_wrong_threshold(threshold):
    with pytest.raises(ValueError, match=r"^threshold=.*: a share of the gradient above 0"):
        Shares(threshold)
