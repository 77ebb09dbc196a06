"""The trainings on two arithmetics of one algorithm: what each arm is, what is said of made-up
results, and the run of record.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from roundscope.attention import Site
from roundscope.emu.roundings.modes import BF16, BINARY32
from roundscope.experiments.framework.command import missing
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.released_2510_04212 import study as s
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.tools.results.run import Run

RECORD = Path(__file__).parents[4] / "docs" / "runs" / "released.sqlite"


def plan(arithmetic, case, row):
    condition = s.Condition(arithmetic=arithmetic, case=case, row=row, seed=0)
    config = s.config_of(s.QUICK, arithmetic)
    return plans_of(config, s.arm(s.QUICK, condition).changes)[0][0]


def test_what_is_low_follows_from_the_plan():
    """A list of events that belongs to the other arithmetic: the compiled code's backward has BF16
    operands, the preset's has not.
    """
    assert {Site.S_B, Site.P_B, Site.DS, Site.MS, Site.LANES} <= set(s.low(s.COMPILED))
    assert not {Site.S_B, Site.P_B, Site.DS} & set(s.low(s.PRESET)) and Site.O in s.low(s.PRESET)


@pytest.mark.parametrize("arithmetic", s.ARITHMETICS)
def test_rows_change_what_they_say(arithmetic):
    """A change that the grammar takes and that changes nothing, or too much."""
    itself = plan(arithmetic, s.FAST, s.ITSELF)
    exact, output = plan(arithmetic, s.FAST, s.EXACT), plan(arithmetic, s.FAST, s.OUTPUT)
    assert all(exact[site] == BINARY32 for site in Site)
    assert {site for site in Site if output[site] != itself[site]} <= {
        Site.PV,
        Site.AO,
        Site.O,
        Site.OUT,
    } and output[Site.OUT] == BINARY32
    fewer = plan(arithmetic, s.FEWER, s.ITSELF)
    assert {site for site in Site if fewer[site] != itself[site]} == set(
        s.low(arithmetic)
    ) and fewer[Site.P].format.precision == 6
    zero = plan(arithmetic, s.ZERO, s.ITSELF)
    assert (
        zero[Site.OUT].mode == "toward-zero" and zero[Site.S] == BINARY32 and zero[Site.P] == BF16
    )


def test_a_swap_makes_each_backward_what_the_other_is():
    """Scores that the backward rounds as the forward did, and does not."""
    preset, compiled = plan(s.PRESET, s.FAST, s.SWAPPED), plan(s.COMPILED, s.FAST, s.SWAPPED)
    assert (
        preset[Site.SCALED] == preset[Site.SCALED_B] == BF16
        and preset[Site.S] == preset[Site.S_B] == BINARY32
    )
    assert compiled[Site.S] == BF16 and compiled[Site.S_B] == BINARY32
    kept = plan(s.COMPILED, s.FAST, "m and l kept in FP32")
    assert kept[Site.MS] == kept[Site.LANES] == BINARY32 and kept[Site.P] == BF16


def runs(name, case, row, steps):
    """Made-up runs, one for each step of divergence, None for one that did not."""
    told = [s.Condition(arithmetic=name, case=case, row=row, seed=i) for i in range(len(steps))]
    return [
        Run(condition=x, steps=1000, diverged=step, loss=1.0, curve=())
        for x, step in zip(told, steps, strict=True)
    ]


def made(fast, cured, exact=(None,) * 5):
    rows = {s.ITSELF: fast, s.EXACT: exact, s.CENTRED: cured}
    return {
        (s.COMPILED, s.FAST, row): runs(s.COMPILED, s.FAST, row, steps)
        for row, steps in rows.items()
    }


def words(results):
    [fails] = [v.word for v in s.fails(results) if v.case == s.COMPILED and s.FAST in v.claim]
    [repair] = [v.word for v in s.repairs(results)]
    return fails, repair


def test_claims_on_made_up_results():
    """A case that fails and is cured, one that is made worse, one that decides nothing and leaves
    its repair untested.
    """
    assert words(made([9] * 5, [None] * 5)) == (Word.AGREES, Word.AGREES)
    assert words(made([9] * 5, [5] * 5)) == (Word.AGREES, Word.CONTRADICTS)
    assert words(made([9, None, None, None, None], [None] * 5)) == (
        Word.UNDECIDED,
        Word.NOT_TESTABLE,
    )
    results = made([9] * 5, [None] * 5)
    assert "qiu-yao-compiled fails in 1 of 5 cases" in s.answer(results) and s.CENTRED in s.answer(
        results
    )


def test_the_run_of_record_is_whole(tmp_path):
    """A change of the study, or of a key, after which the record would train again; a table or a
    picture that loses it.
    """
    shutil.copy(RECORD, tmp_path / "released.sqlite")
    study = s.asked(quick=False)
    with opened(tmp_path, "released") as store:
        assert not missing(study, store)
        results = study.results(store)
    assert s.diverged(results[s.COMPILED, s.FAST, "m and l kept in FP32"]) == 1
    assert s.draw(results) is not None and len(s.rows(results)) == len(s._lines())


def test_quick_is_smaller():
    """--quick in name only."""
    quick, full = (sum(1 for _ in s.conditions(scale)) for scale in (s.QUICK, s.FULL))
    assert 3 * quick <= 1.5 * full and replace(s.FULL.config, layers=2) != s.FULL.config


def test_rules_are_whole_sentences():
    """One text in place of a tuple of texts, of which a page makes a paragraph for each letter."""
    assert all(len(text) > 40 for text in s.asked(quick=True).rules)
