"""Verdicts on made-up runs: what is alike, of one sign, or warns; and a page that draws them."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from roundscope.experiments.framework.command import missing
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.mechanism_2510_04212 import claims, figures, study
from roundscope.experiments.papers.mechanism_2510_04212.conditions import (
    AS_IT_IS,
    EXACT,
    NORM,
    PLAIN,
    ZERO,
    Condition,
    Results,
    conditions,
)
from roundscope.experiments.papers.mechanism_2510_04212.looks import NAMES
from roundscope.tools.results.run import Run

RECORD = Path(__file__).parents[4] / "docs" / "runs" / "mechanism.sqlite"
SEEDS, HEADS, LOOKS = 4, 2, 12


def run(variant, arithmetic, seed, *, diverged=None, signs=None, moves=None, **columns):
    """A run whose looks, every 25 steps, have these columns, numbers or one for each look."""
    signs = np.ones(LOOKS) if signs is None else signs
    curve = []
    for k in range(LOOKS):
        loss = math.nan if k == 0 else 9.0 if moves is not None and k > moves else 1.0
        own = [np.broadcast_to(columns.get(name, 0.1), LOOKS)[k] for name in NAMES]
        own = [x * (1.0 + 0.01 * seed) for x in own]
        curve.append((25.0 * k, loss, *map(float, own), *([0.5 * float(signs[k])] * HEADS)))
    condition = Condition(variant=variant, arithmetic=arithmetic, seed=seed)
    return Run(condition=condition, steps=300, diverged=diverged, loss=1.0, curve=tuple(curve))


def results(**of):
    """Results of GPT-2's layers with columns by arithmetic; FP32 has none of note."""
    by = {(PLAIN, EXACT): [run(PLAIN, EXACT, n) for n in range(SEEDS)]}
    for arithmetic, columns in of.items():
        at = {"as_it_is": AS_IT_IS, "zero": ZERO}[arithmetic]
        by[PLAIN, at] = [run(PLAIN, at, n, **columns) for n in range(SEEDS)]
    return Results(study.QUICK, by)


def word(r, claim, case=""):
    [found] = [v.word for v in claims.judged(r) if claim in v.claim and case in v.case]
    return found


def test_alike_and_of_low_rank_need_half():
    """A cosine judged beside its null, or a share of one case in the other's line."""
    r = results(as_it_is={"atom": 0.7, "first": 0.3, "shuffled": 0.3}, zero={"atom": 0.2})
    assert word(r, "atoms are alike", AS_IT_IS) is Word.AGREES
    assert word(r, "atoms are alike", ZERO) is Word.CONTRADICTS
    assert word(r, "R has low rank", AS_IT_IS) is Word.CONTRADICTS
    assert word(r, "errors' doing", AS_IT_IS) is Word.CONTRADICTS  # the null has as much


def test_one_sign_is_more_than_chance():
    """Errors that cancel taken for one sign, or a single sign for chance."""
    turning = np.array([1, -1] * (LOOKS // 2))
    r = results(as_it_is={"signs": turning}, zero={"signs": -np.ones(LOOKS)})
    assert word(r, "has one sign", AS_IT_IS) is Word.CONTRADICTS
    assert word(r, "has one sign", ZERO) is Word.AGREES
    assert claims.one_sign(np.ones((3, 2))) == 1.0 and math.isnan(claims.one_sign(np.zeros((3, 2))))
    [plus] = [v for v in claims.judged(r) if "sign is plus" in v.claim and ZERO in v.case]
    assert plus.measured.startswith("0 of 4 ")


def test_norm_breaks_what_it_makes_smaller():
    """The ratio upside down."""
    r = results(as_it_is={"atom": 0.8})
    r.by[NORM, AS_IT_IS] = [run(NORM, AS_IT_IS, n, atom=0.4) for n in range(SEEDS)]
    assert word(r, "QK-norm breaks", AS_IT_IS) is Word.AGREES
    r.by[NORM, AS_IT_IS] = [run(NORM, AS_IT_IS, n, atom=0.8) for n in range(SEEDS)]
    assert word(r, "QK-norm breaks", AS_IT_IS) is Word.CONTRADICTS


def test_maxima_warn_before_the_loss_moves_or_do_not():
    """Looks after the loss moved, a threshold chosen on the runs that test it, false alarms."""
    rising = np.where(np.arange(LOOKS) >= 6, 0.6, 0.12)
    lost = {"diverged": 250, "moves": 9, "tied": rising, "made": 0.0, "whole": 1.0}
    r = results(zero=lost)
    r.by[NORM, EXACT] = [run(NORM, EXACT, n, tied=0.12) for n in range(SEEDS)]
    r.by[NORM, ZERO] = [run(NORM, ZERO, n, **lost) for n in range(SEEDS)]
    of, grid = claims.WARNINGS["the share of rows with several maxima"]
    assert claims.chosen(r, of, grid) == 0.5
    one = r.of(NORM, ZERO)[0]
    assert claims.step_of(r, one, of, 0.5) == 150  # the looks from the warm-up on
    found = {(v.claim, v.case): v for v in claims.judged(r)}
    early = found["it warns more than half of the runs that diverge before their loss moves",
                  "the share of rows with several maxima, above 0.5"]  # fmt: skip
    assert early.measured.startswith("4 of 4 ")
    late = {**lost, "tied": np.where(np.arange(LOOKS) >= 10, 0.6, 0.12)}
    r.by[NORM, ZERO] = [run(NORM, ZERO, n, **late) for n in range(SEEDS)]
    again = {(v.claim, v.case): v for v in claims.judged(r)}
    assert again[early.claim, early.case].measured.startswith("0 of 4 ")


@pytest.mark.pictures
def test_page_is_drawn():
    """A figure or table that fails where kinds of layers are missing."""
    r = results(as_it_is={}, zero={"diverged": 250})
    assert claims.answer(r) and len(list(study.rows(r))) == 3 and len(study.records(r)) == 12
    assert all(each.draw(r) is not None for each in figures.FIGURES)


def test_every_condition_has_an_arm():
    """An arm that another condition took, or a rate that is not three times."""
    from roundscope.experiments.papers.mechanism_2510_04212.conditions import FASTER, arms_of

    arms = arms_of(study.FULL)
    found = [c for own in arms.values() for c in own]
    assert found and set(found) == set(conditions(study.FULL)) and len(arms) == 7
    rates = {c.arithmetic: arm.lr for own in arms.values() for c, arm in own.items()}
    assert rates[FASTER] == pytest.approx(3 * rates[AS_IT_IS])


def test_the_run_of_record_is_whole(tmp_path):
    """A change of the study, or of a key, after which the record would train again."""
    shutil.copy(RECORD, tmp_path / "mechanism.sqlite")
    own = study.asked(quick=False)
    with opened(tmp_path, "mechanism") as store:
        assert not missing(own, store)
        r = own.results(store)
    assert len(r.by) == 23 and len(r.of(PLAIN, ZERO)) == SEEDS
    assert all(run.diverged is not None for run in r.of(PLAIN, ZERO))
