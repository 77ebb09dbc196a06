"""The alarm of drift: which heads, when, once."""

import json

import numpy as np
import pytest

from roundscope.experiments.train.run.drift import IN_A_ROW, DriftWatch

SHAPE = 3, 2, 2


def looks(watch, values, first=0):
    """Alarms of (looks, arms, layers, heads), every 10th step."""
    return [a for n, own in enumerate(values, start=first) for a in watch.update(10 * n, range(own.shape[0]), own)]


def values():
    """Arm 0: two heads that stay high; arm 1: high twice in a row only; arm 2: NaN."""
    found = np.full((8, *SHAPE), 1e-3)
    found[2:, 0, 1, 0], found[2:, 0, 0, 1] = 0.05, 0.03
    found[[1, 2, 4, 5, 7], 1, 0, 0] = 0.5
    found[:, 2] = np.nan
    return found


def test_a_head_that_stays_above_is_told_of_once():
    """An alarm for a single look, for every look, or for another head."""
    watch = DriftWatch(SHAPE, 0.02)
    [alarm] = looks(watch, values())
    assert (alarm.step, alarm.arm, alarm.series, alarm.kind) == (
        10 * (2 + IN_A_ROW - 1),
        0,
        "layer 1, head 0",
        "drift",
    )
    assert (alarm.value, alarm.limit, alarm.diverged) == (0.05, 0.02, None)
    assert watch.going_on().tolist() == [True, False, False]


@pytest.mark.parametrize("cut", [3, 6])
def test_it_goes_on_through_a_checkpoint(cut):
    """Looks that are counted anew, or an alarm told twice, after a run went on; arms in another order."""
    first, second = DriftWatch(SHAPE, 0.02), DriftWatch((2, 2, 2), 0.02)
    found = looks(first, values()[:cut])
    second.restore(json.loads(json.dumps(first.state())), [1, 0])
    found += looks(second, values()[cut:, [1, 0]], cut)
    assert [(a.step, a.series) for a in found] == [(40, "layer 1, head 0")]


def test_no_threshold_no_alarm():
    assert looks(DriftWatch(SHAPE, None), values()) == []
