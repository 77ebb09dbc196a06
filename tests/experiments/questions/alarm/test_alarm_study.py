"""The study of the alarm: what is counted as a warning, on made-up runs, and the run of record."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from roundscope.experiments.framework.command import missing
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.questions.alarm import study as s
from roundscope.experiments.questions.alarm.study import (
    COLUMNS,
    alarm,
    highest,
    is_early,
    is_warned,
    looking,
    moves,
    right,
)
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.results.run import Run

RECORD = Path(__file__).parents[4] / "docs" / "runs" / "alarm.sqlite"
CASE = s.Case(part=s.TEST, preset=s.FLASH, name="made up")


def run(shares, diverged=None, seed=0, losses=None):
    """A run whose looks, every 25 steps, have these shares on their own, and these mean losses."""
    point = dict.fromkeys(COLUMNS, 0.0)
    curve = [
        (25.0 * n, loss, *(point | {"made": share, "whole": 1.0}).values())
        for n, (share, loss) in enumerate(zip(shares, losses or [1.0] * len(shares), strict=True))
    ]
    condition = s.Condition(case=CASE, seed=seed)
    return Run(condition=condition, steps=100, diverged=diverged, loss=1.0, curve=tuple(curve))


def test_a_warning_comes_before_the_divergence():
    """An alarm from the first look, one that counts although it came too late, a share that is not
    the decayed sum of drifts over that of gradients.
    """
    rising = run([0.0, 0.0, 0.0, 1.0, 1.0], diverged=125)
    weights = 0.9 ** np.arange(4, -1, -1)
    assert highest(rising) == pytest.approx(weights[-2:].sum() / weights.sum())
    assert alarm(rising, 0.2) == 75 and is_warned(rising, 0.2)
    assert not is_warned(run([0.0, 0.0, 0.0, 1.0, 1.0], diverged=124), 0.2)
    assert alarm(run([1.0, 1.0]), 0.2) is None  # two looks are too few


def test_a_loss_moves_above_its_own_lowest_mean():
    """A rise against the start, the end of a block for its start, a run that only falls."""
    losses = [np.nan, 3.0, 2.0, 2.05, 2.2, 9.0]
    shares = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    lost = run(shares, diverged=120, losses=losses)
    assert moves(lost) == 75 and moves(run(shares)) is None
    assert alarm(lost, 0.2) == 50 and is_early(lost, 0.2)
    late = run([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], diverged=120, losses=losses)
    assert alarm(late, 0.2) == 75 and not is_early(late, 0.2)
    assert right([lost]) == 0.2 and right([late]) is None  # its share is 1 of 1 + 0.9 + 0.81


def test_claims_count_the_runs_that_test():
    """Runs that diverged among the false alarms, or a word that ignores its interval."""
    quiet = [run([0.01] * 5, seed=n) for n in range(60)]
    lost = [run([0.9] * 9, diverged=200, seed=n) for n in range(60)]
    early, warned, false, common = s.claims({CASE: [*quiet, *lost]})
    assert {early.word, warned.word, false.word} == {Word.AGREES}
    assert warned.measured.startswith("60 of 60") and false.measured.startswith("0 of 60")
    assert common.word is Word.NOT_TESTABLE  # no such arithmetic among them
    loud = {CASE: [run([0.9] * 5, seed=n) for n in range(60)]}
    assert [v.word for v in s.claims(loud)][2] is Word.CONTRADICTS


def test_parts_share_nothing():
    """A threshold that is tested on the runs that chose it."""
    parts = {part: [x for x in s.conditions(s.FULL) if x.case.part == part] for part in s.NAMES}
    arms = {part: {x.case.changes for x in own} for part, own in parts.items()}
    assert arms[s.CHOOSE] & arms[s.TEST] <= {
        (),
        ("-> fp32",),
        *(s.rounded("OD", p) for p in (4, 6)),
    }
    assert not {x.seed for x in parts[s.CHOOSE]} & {x.seed for x in parts[s.TEST]}


@pytest.mark.thorough
def test_a_look_sees_a_biased_delta():
    """Rows of another layout, a basis that is not the values, sums that forget looks."""
    config = Config(layers=1, heads=2, width=16, context=16, batch=2, warmup=2, steps=10,
                    plan="fa2-bf16", matmul="fp32")  # fmt: skip
    arms = tuple(
        Arm(name=name, changes=changes, lr=1e-2, seed=0)
        for name, changes in (("exact", ("-> fp32",)), ("biased", s.rounded("OD", 2)))
    )
    state = one_step.start(config, 2, [0, 0])
    group = Group(Settings(config=config, arms=arms), [0, 1], state)
    tokens = {0: np.random.default_rng(0).integers(0, 250, (2, 17)).astype(np.int32)}
    look = looking()
    first, second = (np.asarray(look(group, n, tokens)) for n in (0, 25))
    made, whole, summed = first[:, 0], first[:, 1], first[:, 2]
    assert first.shape == (2, len(COLUMNS)) and (made / whole)[0] < 1e-5 < 1e-2 < (made / whole)[1]
    np.testing.assert_allclose(summed, made, rtol=1e-5)  # of one look
    np.testing.assert_allclose(second[1, 2], 1.9 * made[1], rtol=1e-4)  # the same look twice


def test_the_run_of_record_is_whole(tmp_path):
    """A change of the study, or of a key, after which the record would train again."""
    shutil.copy(RECORD, tmp_path / "alarm.sqlite")
    study = s.asked(quick=False)
    with opened(tmp_path, "alarm") as store:
        assert not missing(study, store)
        results = study.results(store)
    assert right(s.runs_of(results, s.CHOOSE)) == s.THRESHOLD
    assert s.counts(s.runs_of(results, s.TEST)).lost == 45
