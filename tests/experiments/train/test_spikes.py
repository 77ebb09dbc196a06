"""The spike rule on curves whose spikes we know."""

import json

import numpy as np
import pytest

from roundscope.experiments.train.spikes import (
    IN_A_ROW,
    Watch,
    divergences,
    followed,
    growth,
    watches,
)


def curve(steps, arms=1, noise=0.05, seed=0, tails=None):
    rng = np.random.default_rng(seed)
    drawn = (
        rng.normal(size=(steps, arms))
        if tails is None
        else rng.standard_t(tails, size=(steps, arms))
    )
    return 1.0 + 4.0 * np.exp(-np.arange(steps) / 300)[:, None] + noise * drawn


def diverged(losses):
    """The step at which a run with these losses has diverged."""
    return followed(losses[:, None]).diverged()[0]


def alarms(values, watch=None):
    watch = watch or Watch("loss", values.shape[1])
    return [a for step, row in enumerate(values) for a in watch.update(step, row)]


@pytest.mark.parametrize("tails", [pytest.param(None, marks=pytest.mark.thorough), 3])
def test_noise_raises_no_alarm(tails):
    """False alarms: 100,000 steps of a falling loss with normal noise, and with heavy tails, and of
    gradient norms over two decades.
    """
    assert alarms(curve(1250, arms=80, tails=tails)) == []
    norms = np.exp(10 * (curve(1250, arms=80, seed=1, tails=tails) - 1.0))
    assert alarms(norms, watches(80)[1]) == []


def test_a_spike_is_found_at_its_third_step():
    """A rule that is late, finds a spike twice, takes one high value for one, or raises its own
    threshold by it.
    """
    values = curve(800)
    values[300] += 3.0  # a single high value is noise
    values[500:520] += 2.0
    values[600:603] += 2.0
    found = alarms(values)
    assert [(a.step, a.kind) for a in found] == [
        (500 + IN_A_ROW - 1, "spike"),
        (600 + IN_A_ROW - 1, "spike"),
    ]
    assert found[0].value > found[0].limit > values[480:500].max()


def test_slow_growth_is_a_rise():
    """A loss that creeps up: each value is within the spread of those before, so no spike is ever
    seen.
    """
    values = curve(3000, noise=0.05)
    values[1500:, 0] += np.linspace(0, 1.5, 1500)
    found = alarms(values)
    assert [a.kind for a in found] == ["rise"]
    assert 1900 < found[0].step < 2200  # 0.5 nats after a third of the growth, half a window late
    assert diverged(values[:, 0]) == found[0].step and diverged(curve(3000)[:, 0]) is None


def test_a_jump_that_stays_is_a_divergence():
    """A loss that jumps once for all and is only called a spike: no value after the jump enters the
    median.
    """
    values = curve(1300, arms=4)[500:]
    values[300:, 0] += 2.0
    values[300:399, 1] += 2.0  # one step short of 100
    values[300:, 2] += 2.0
    values[310::10, 2] = 1.0  # a tenth of the losses below: still no recovery
    found = alarms(values)
    assert [(a.step, a.kind) for a in found if a.arm == 0] == [(302, "spike"), (399, "stay")]
    assert [a.kind for a in found if a.arm == 1] == ["spike"] and [
        a.kind for a in found if a.arm == 3
    ] == []
    assert [a.kind for a in found if a.arm == 2].count("stay") == 1
    assert [diverged(column) for column in values.T[[0, 1, 3]]] == [300, None, None]
    assert 300 <= diverged(values[:, 2]) < 400
    watch = Watch("loss", 4)
    alarms(values, watch)
    assert watch.going_on().tolist() == [True, False, True, False]


def test_divergence_is_the_earliest_thing_that_lasts():
    """A rule that dates a run by its spikes, by its gradient norms, or by the later of two
    things.
    """
    values = curve(900)
    values[200:230] += 3.0
    values[400:] += 3.0
    values[450:] = np.nan  # the spike had not lasted 100 steps yet
    assert diverged(values[:, 0]) == 450
    assert diverged(values[:450, 0]) is None
    norms = watches(1)[1]
    values = np.exp(curve(500))
    values[200:] *= np.exp(5.0)
    assert [a.kind for a in alarms(values, norms)] == [
        "spike",
        "growth",
    ]  # and neither dates the run
    assert divergences(alarms(np.array([[np.nan]]), watches(1)[1])) == {}


def test_a_watch_kept_before_stays_were_counted_goes_on():
    """A checkpoint of an older version that cannot be resumed."""
    values, old = curve(1100)[500:], Watch("loss", 1)
    values[300:] += 2.0
    alarms(values[:200], old)
    kept = {name: value for name, value in old.state().items() if name != "stayed"}
    new = Watch("loss", 1)
    new.restore(kept, [0])
    assert [(200 + a.step, a.kind) for a in alarms(values[200:], new)] == [
        (302, "spike"),
        (399, "stay"),
    ]


def test_what_is_not_finite_is_told_once_and_by_arm():
    """An arm that is lost silences others, or fills the log."""
    values = curve(300, arms=3)
    values[100:, 1] = np.nan
    values[0, 2] = np.inf
    values[200:210, 0] += 5.0
    assert [(a.step, a.arm, a.kind) for a in alarms(values)] == [
        (0, 2, "not finite"),
        (100, 1, "not finite"),
        (202, 0, "spike"),
    ]


def test_a_restored_watch_goes_on_as_if_never_stopped():
    """State that is not kept: a resumed run would find other alarms.

    It passes through JSON, as in a checkpoint.
    """
    values = curve(600, arms=2)
    values[401:460, 1] += 2.0
    whole, first = Watch("loss", 2), Watch("loss", 2)
    expected = alarms(values, whole)
    found = alarms(values[:402], first)
    second = Watch("loss", 1)
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)), [1])
    for step in range(402, 600):
        found += second.update(step, values[step, 1:])
    assert (
        [(a.step, a.kind) for a in found]
        == [(a.step, a.kind) for a in expected]
        == [(403, "spike")]
    )
    assert (
        second.going_on().tolist() == [False] and (second.values[:, 0] == whole.values[:, 1]).all()
    )


def grown(steps=400):
    """Gradient norms of four arms: falling, growing tenfold every 100 steps from step 100 on, high
    for 9 steps, 5 times higher.
    """
    noise = np.exp(0.3 * np.random.default_rng(3).normal(size=(steps, 4)))
    size = np.repeat(np.exp(-np.arange(steps) / 200)[:, None], 4, axis=1)
    size[:, 1] = 10.0 ** (np.maximum(np.arange(steps) - 100, 0) / 100)
    size[200:209, 2] *= 1e4
    size[200:, 3] *= 5.0
    return size * noise


def test_norms_that_grow_are_told_of_long_before_the_loss():
    """No alarm but the loss's, for a norm that went from 0.6 to 10^5; or one for a spike, a jump
    below tenfold, norms that fall.
    """
    values = grown()
    found = alarms(values, watches(4)[1])
    [alarm] = [a for a in found if a.kind == "growth"]
    # the median of 20 is half of that behind, and the noise that the lowest median has seen is a
    # little below 1
    assert alarm.arm == 1 and 195 <= alarm.step <= 215 and alarm.limit < alarm.value
    assert growth(values) == [None, alarm.step, None, None]
    assert alarm.diverged is None and alarm.delay == 20


def test_growth_goes_on_through_a_checkpoint():
    """A growth that is forgotten or told twice after a run went on; a checkpoint of an older
    version.
    """
    values, whole = grown(), watches(4)[1]
    expected = [
        (a.step, a.kind) for a in alarms(values[:, :2], watches(2)[1]) if a.kind == "growth"
    ]
    alarms(values[:150], whole)
    for cut in (150, 300):
        first, second = watches(2)[1], watches(1)[1]
        found = [a for a in alarms(values[:cut, :2], first) if a.kind == "growth"]
        second.restore(json.loads(json.dumps(first.state(), allow_nan=False)), [1])
        for step in range(cut, 400):
            found += [a for a in second.update(step, values[step, 1:2]) if a.kind == "growth"]
        assert [(a.step, a.kind) for a in found] == expected
    old = {
        name: kept
        for name, kept in whole.state().items()
        if name not in ("recent", "least", "grown")
    }
    new = watches(4)[1]
    new.restore(old, range(4))
    assert not new.grown.any()
    fresh = watches(1)[1].state()
    assert json.loads(json.dumps(fresh, allow_nan=False))["least"] == ["inf"]
