"""Epsilon at one state and at two, from a training of a few steps; and what the claims read from
looks that were made up.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.microscaling_2506_20752 import claims
from roundscope.experiments.papers.microscaling_2506_20752.measurements import QUICK, Found, pair_up
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import UNCHANGED, Arm, Config
from roundscope.experiments.train.student.run import measures
from tests.experiments.papers.microscaling_2506_20752.made import looks, run

CONFIG = Config(
    depth=1, width=32, ratio=1, batch=32, steps=4, lr=0.05, min_lr=0.05, measure_every=2
)
COARSE = ((0, "site=W -> mxfp4"),)  # one event: little to compile


@pytest.fixture(scope="module")
def trained():
    arms = [Arm(name=UNCHANGED, changes=COARSE, lr=0.05, seed=seed) for seed in (1, 0)]
    exact = [Arm(name="fp32", lr=0.05, seed=seed) for seed in (1, 0)]
    return pair_up(CONFIG, arms, exact, ((0, "site=W -> mxfp4:rceil"),), lambda done: None)


def test_epsilon_of_two_trainings_starts_as_that_of_one_state(trained):
    """Gradients of other rows, seeds or weights compared: at step 0 both have the same weights, and
    both epsilons are one number.
    """
    for r in trained[:2]:
        (first, at_start), (second, later) = measures(r)
        assert (first, second) == (0, 2)
        assert (
            at_start["zeta_apart"] == pytest.approx(at_start["zeta"], rel=1e-3)
            and at_start["zeta"] > 0.01
        )
        assert at_start["cosine_apart"] == pytest.approx(at_start["cosine"], rel=1e-4)
        assert later["zeta_apart"] != pytest.approx(later["zeta"], rel=1e-3)
        assert later["zeta_rceil"] != pytest.approx(later["zeta"], rel=1e-3)
    assert measures(trained[0])[0][1]["zeta"] != measures(trained[1])[0][1]["zeta"]


def test_runs_beside_their_partners_are_whole(trained):
    """Steps that are lost or done twice between looks; a partner with the arm's measures."""
    assert [r.condition.name for r in trained] == [UNCHANGED] * 2 + ["fp32"] * 2 and [
        r.seed for r in trained
    ] == [1, 0, 1, 0]
    assert all(r.steps == CONFIG.steps and math.isfinite(r.loss) for r in trained)
    assert not measures(trained[2]) and trained[0].loss != trained[2].loss


def found(until, diverged, zeta=0.3, apart=1.2):
    own = [
        run(
            UNCHANGED,
            seed,
            diverged,
            measures=looks(zeta * (1 + 0.01 * seed), apart * (1 + 0.01 * seed), until=until),
        )
        for seed in range(5)
    ]
    return Found(scale=QUICK, epsilon=[*own, *(run("fp32", seed) for seed in range(5))])


def test_what_is_said_of_epsilon_is_of_looks_before_the_divergence():
    """Looks after the divergence, or at the untrained start, in a mean; growth without a beginning;
    a word the wrong way round.
    """
    rows = {v.claim: v for v in claims.epsilon(found(1000, 450))}
    grown = rows[
        "the error grows before the divergence"
    ]  # looks at 100, 200, 300, 400: half way is the second
    assert grown.estimate.mean == pytest.approx(4 / 2) and grown.word is Word.AGREES
    apart = rows["epsilon of two trainings is the formats' error (3.5 e)"]
    assert (
        apart.estimate.mean == pytest.approx(1.2 / (0.3 * 2.5)) and apart.word is Word.CONTRADICTS
    )
    two = rows["diverges where |epsilon| / |g| nears 2"]
    assert two.estimate.mean == pytest.approx(
        4 * 0.3 * np.prod([1 + 0.01 * s for s in range(5)]) ** 0.2
    )
    assert (
        rows["the error comes from clipping: RCEIL at the same state has less"].word is Word.AGREES
    )
    name, part, sure = claims.largest(found(1000, 450))
    assert name is Site.X and sure == 5 and part.mean == pytest.approx(0.8 / 2.5)


def test_runs_that_live_are_read_to_their_end():
    """No numbers at all where nothing diverged; runs that lived in a mean with those that did
    not.
    """
    assert len(claims.before(found(500, None).epsilon[0])) == 4
    mixed = found(500, 450)
    mixed = replace(
        mixed, epsilon=[*mixed.epsilon, run(UNCHANGED, 9, None, measures=looks(9.0, 9.0))]
    )
    assert {r.seed for r in claims.runs_of(mixed)} == set(range(5))
    assert list(claims.epsilon(Found(scale=QUICK))) == []
