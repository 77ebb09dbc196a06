"""The alarm of drift: which arms and heads, when, once."""

import json

import numpy as np
import pytest

from roundscope.experiments.train.spikes import DriftWatch

SHAPE = 3, 2, 2


def looks(watch, values, first=0):
    """Alarms of (looks, 2, arms, layers, heads), drift and gradient, every 10th step."""
    found = []
    for n, (drift, gradient) in enumerate(values, start=first):
        found += watch.update(10 * n, range(drift.shape[0]), drift, gradient)
    return found


def values():
    """Arm 0 drifts from the 4th look on, most in one head; arm 1 only in a head with a small
    gradient; arm 2 is lost.
    """
    found = np.ones((8, 2, *SHAPE))
    found[:, 0] = 1e-3
    found[3:, 0, 0, 1, 0], found[3:, 0, 0, 0, 1] = 0.5, 0.3
    found[:, 0, 1, 0, 0], found[:, 1, 1, 0, 0] = 0.9, 1e-3
    found[2:, 0, 2] = np.nan
    return found


def test_an_arm_that_drifts_is_told_of_once():
    """An alarm for every look, for another head, or for a head whose gradient is so small that
    nothing comes of its drift.
    """
    watch = DriftWatch(SHAPE, 0.02)
    [alarm] = looks(watch, values())
    assert (alarm.step, alarm.arm, alarm.series, alarm.kind) == (30, 0, "layer 1, head 0", "drift")
    sums = [0.9**3 + 0.9**2 + 0.9, 1.0]  # weights of the looks before, and of this
    share = (4e-3 * sums[0] + (0.5 + 0.3 + 2e-3)) / (4 * sum(sums))
    assert (alarm.value, alarm.limit, alarm.diverged) == (pytest.approx(share), 0.02, None)
    assert watch.going_on().tolist() == [True, False, False]


def test_one_or_two_looks_are_not_enough():
    """An alarm at the first step, where every number is of weights that nobody has trained."""
    high = np.ones((8, 2, *SHAPE))
    assert [a.step for a in looks(DriftWatch(SHAPE, 0.02), high)] == [20, 20, 20]


@pytest.mark.parametrize("cut", [2, 6])
def test_it_goes_on_through_a_checkpoint(cut):
    """Looks that are counted anew, or an alarm told twice, after a run went on; arms in another
    order.
    """
    first, second = DriftWatch(SHAPE, 0.02), DriftWatch((2, 2, 2), 0.02)
    found = looks(first, values()[:cut])
    second.restore(json.loads(json.dumps(first.state())), [1, 0])
    found += looks(second, values()[cut:, :, [1, 0]], cut)
    assert [(a.step, a.series) for a in found] == [(30, "layer 1, head 0")]


def test_no_threshold_no_alarm():
    assert looks(DriftWatch(SHAPE, None), values()) == []
