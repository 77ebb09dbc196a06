"""Fig. 7 and 8: trainings that are compared, what is kept of them, and verdicts on made-up
distances.
"""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from roundscope.attention.sites import OF_BIAS, Site
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.stability_2405_02803 import measuring as kept
from roundscope.experiments.papers.stability_2405_02803 import trainings
from roundscope.experiments.papers.stability_2405_02803.measuring import FULL, QUICK, Results
from roundscope.experiments.papers.stability_2405_02803.trainings import (
    OTHER,
    PAIRS,
    VERSIONS,
    Apart,
    distances,
    draw,
    executables,
)
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.groups import plans_at
from roundscope.tools.sweep.storage.store import writing
from tests.experiments.papers.stability_2405_02803.synthetic import TINY, straight

YES, NO, OPEN = Word.AGREES, Word.CONTRADICTS, Word.UNDECIDED
T = replace(TINY.training, seeds=4)
S = replace(TINY, training=T)


def results(**rates):
    """Results whose distances grow by a rate per step."""
    return Results(cells={}, sites={}, drifts=straight(T, rates))


def words(found, claim, metric):
    return [v.word for v in found if claim in v.claim and v.case.startswith(metric)]


@pytest.mark.thorough
def test_trainings_are_compared_at_the_steps_they_reached():
    """Weights of another step or seed, batches that differ within a pair, first weights that do not
    differ where they must.
    """
    t = replace(TINY.training, pairs=("flash", "weights"), looks=2, tile=8)
    done = []
    found = trainings.run(t, done.append)
    assert done == [4, 8] and set(found) == {"flash", "weights"} and set(found["flash"]) == {0, 1}
    for seed in (0, 1):
        flash, others = found["flash"][seed], found["weights"][seed]
        assert (
            flash.max_difference[0] == flash.wasserstein[0] == 0.0
            and (flash.max_difference[1:] > 0).all()
        )
        first = [
            jax.device_get(model.init(t.config, jax.random.key(np.uint32(s))))
            for s in (seed, seed + OTHER)
        ]
        apart = distances(*first)
        assert others.max_difference[0] == pytest.approx(
            max(d.max_difference for d in apart), rel=1e-5
        )
        entries = np.concatenate([np.full(d.size, d.wasserstein) for d in apart])
        assert others.wasserstein[0] == pytest.approx(
            entries.mean(), rel=1e-5
        )  # jit draws other last bits
        assert math.isnan(flash.loss[0]) and abs(flash.gap[1]) < 1e-3 < abs(others.gap[1])
        assert flash.loss[1] - flash.gap[1] == pytest.approx(
            others.loss[1] - others.gap[1]
        )  # the partner of both is the same
    again = trainings.run(t, done.append)
    assert all(
        np.array_equal(found[p][s].wasserstein, again[p][s].wasserstein)
        for p in found
        for s in found[p]
    )


def test_versions_differ_in_what_they_are_to_differ_in():
    """A pair that differs in more than its question, two seeds of weights that collide, FP16 that
    rounds a gradient.
    """
    assert {v for pair in PAIRS.values() for v in pair} == set(VERSIONS)
    own = {
        arm: (s.config, weights)
        for s, arms, seeds in executables(FULL.training)
        for arm, weights in zip(arms, seeds, strict=True)
    }
    assert len(own) == len(VERSIONS) * FULL.training.seeds
    assert (
        own["unfused", 3] == (own["other weights", 3][0], 3)
        and own["other weights", 3][1] == 3 + OTHER
    )
    assert replace(own["fa2-bf16", 0][0], plan="baseline-bf16", block=None) == own["unfused", 0][0]
    assert replace(own["fp32, tiled", 0][0], block=None) == own["fp32", 0][0]
    (half,) = [s for s, arms, _ in executables(FULL.training) if arms[0][0] == "fp16"]
    plan = plans_at(half, half.arms[0], 0)[0][0]
    # no call of the model has a bias of the scores
    formats = {str(site): plan[site].format.name for site in Site if site not in OF_BIAS}
    assert {name for name, form in formats.items() if form == "fp16"} == {
        "Q",
        "K",
        "V",
        "S",
        "SCALED",
        "P",
        "PV",
        "OUT",
        "S_B",
        "SCALED_B",
        "P_B",
    }
    assert set(formats.values()) == {"fp16", "fp32"}


def test_another_training_has_another_key():
    """Results of another model that pass for these."""
    t = QUICK.training
    others = [
        replace(t, seeds=6),
        replace(t, tile=4),
        replace(t, looks=10),
        replace(t, config=replace(t.config, steps=301)),
        FULL.training,
    ]
    assert len({t.key, *(o.key for o in others)}) == 6 and replace(t).key == t.key


def test_what_is_kept_comes_back(tmp_path):
    """Seeds or looks that change places, a NaN that becomes a number, a file without trainings that
    cannot be read.
    """
    file, found = tmp_path / "golden.sqlite", straight(T, {"flash": 1.0, "weights": 2.0})
    found["flash"][2] = Apart(
        **{n: np.array([math.nan, 1.0, math.inf, 3.0, 4.0]) for n in kept.NUMBERS}
    )
    with writing(file) as store:
        assert kept.read_drifts(file, T) == ({}, [])
        kept.save(store, T, found, "a device", {})
    back, devices = kept.read_drifts(file, T)
    assert (
        back["flash"][2].loss.tolist()[3:] == [3.0, 4.0]
        and np.isnan(back["flash"][2].loss[[0, 2]]).all()
    )
    assert np.array_equal(back["weights"][3].gap, found["weights"][3].gap) and set(
        back["flash"]
    ) == {0, 1, 2, 3}
    assert devices == ["a device"] and kept.read_drifts(file, replace(T, looks=2)) == ({}, [])


def test_verdicts_on_made_up_distances():
    """Ratios the wrong way round, a band taken for the other, a growth judged by its first half."""
    found = list(
        trainings.judged(results(flash=1.0, weights=2.0, precision=3.0, bf16=9.0).drifts, T)
    )
    for metric in ("Wasserstein", "largest"):
        assert words(found, "keep growing", metric) == [YES] and words(
            found, "slope is at most", metric
        ) == [YES]
        assert words(found, "lies above", metric) == [YES] and words(
            found, "2 to 5 times", metric
        ) == [YES, NO]
    found = list(
        trainings.judged(results(flash=3.0, weights=2.0, precision=1.0, bf16=1.0).drifts, T)
    )
    assert words(found, "slope is at most", "W") == words(found, "lies above", "W") == [NO]
    assert words(found, "2 to 5 times", "W") == [NO, NO]
    still = straight(T, {"flash": 1.0})
    for apart in still["flash"].values():
        apart.wasserstein[2:] = apart.wasserstein[2]  # no growth after half of the steps
    found = list(trainings.judged(Results(cells={}, sites={}, drifts=still).drifts, T))
    assert words(found, "keep growing", "Wasserstein") == [NO]
    assert words(found, "keep growing", "largest") == [YES]
    assert {v.word for v in list(trainings.judged(Results(cells={}, sites={}).drifts, T))} == {OPEN}


def test_scatter_is_about_the_line():
    """A slope that counts as scatter, or the wrong number of freedoms."""
    steps, line = [0, 10, 20, 30], np.array([1.0, 3.0, 5.0, 7.0])
    assert trainings.stray(steps, line) == pytest.approx(0.0, abs=1e-12)
    # residuals 1, -1, -1, 1 are orthogonal to a constant and to the steps: sqrt(4 / 2)
    assert trainings.stray(steps, line + np.array([1.0, -1.0, -1.0, 1.0])) == pytest.approx(
        math.sqrt(2.0)
    )


def test_the_picture_draws_pairs_that_are_there():
    """A picture that needs every pair, or draws seeds under another's name."""
    figure = draw(results(flash=1.0, weights=2.0).drifts, T)
    assert [len(ax.lines) for ax in figure.axes] == [2 * (T.seeds + 1)] * 2
    assert not draw(Results(cells={}, sites={}).drifts, T).axes[0].lines
