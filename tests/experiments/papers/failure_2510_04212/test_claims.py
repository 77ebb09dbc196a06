"""Verdicts of the ablation table on results that were made up."""

import math

import numpy as np
import pytest

from roundscope.experiments.framework.counts import times
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.failure_2510_04212.claims import above, identity, judged, within
from roundscope.experiments.papers.failure_2510_04212.study import answer
from roundscope.experiments.papers.failure_2510_04212.trials import (
    FULL,
    LARGEST,
    RANDOM,
    SMALLEST,
    Results,
    cell,
    chosen,
    of_layer,
    of_row,
    ranked,
    rows,
    whole,
)
from tests.experiments.papers.failure_2510_04212.made import gathered, results, run

NEVER, ALWAYS, SOME = (None, None, None), (400, 300, 500), (None, 300, None)


def word(r: Results, figure: str, case: str, claim: str = "") -> Word:
    """The verdict of one row in one case."""
    [found] = [v for v in judged(r) if (v.figure, v.case) == (figure, case) and claim in v.claim]
    return found.word


@pytest.mark.parametrize(
    ("base", "fp32", "row", "wanted"),
    [
        (ALWAYS, NEVER, NEVER, Word.AGREES),
        (ALWAYS, NEVER, SOME, Word.UNDECIDED),
        (ALWAYS, NEVER, ALWAYS, Word.CONTRADICTS),
        (SOME, NEVER, NEVER, Word.NOT_TESTABLE),  # what does not fail is not cured
        (ALWAYS, SOME, NEVER, Word.NOT_TESTABLE),  # nor what fails without rounding too
    ],
)
def test_stable_needs_a_case_that_fails(
    base: tuple[int | None], fp32: tuple[int | None], row: tuple[int | None], wanted: Word
) -> None:
    """Catches a repair that is said to cure what never fails, and one that is said to work though
    most runs diverged.
    """
    r = results({("A", "0"): base, ("A", "0'"): fp32, ("A", "7"): row})
    assert word(r, "7", "A") is wanted


def test_published_algorithm_that_survives_is_no_contradiction() -> None:
    """Catches 'contradicts' where only our model is too small to show the failure."""
    r = results({("N", "0"): NEVER, ("N", "0'"): NEVER})
    assert word(r, "0", "N") is Word.UNDECIDED
    assert word(results({("N", "0"): ALWAYS, ("N", "0'"): NEVER}), "0", "N") is Word.AGREES


def test_other_delta_that_kills_what_lived_contradicts_row_5() -> None:
    """Catches row 5 judged only where O is the source: on the published algorithm the repair itself
    can be the failure.
    """
    table = {("N", "0"): NEVER, ("N", "0'"): NEVER, ("C", "0"): ALWAYS, ("C", "0'"): NEVER}
    assert word(results(table), "5", "C") is Word.CONTRADICTS
    assert word(results(table | {("C", "0"): NEVER}), "5", "C") is Word.AGREES


def test_heads_are_localised_only_if_random_ones_do_not_cure() -> None:
    """Catches the paper's missing control: a set that cures, where any set of that size does, names
    no head.
    """
    table = {
        ("A", "0"): ALWAYS,
        ("A", "0'"): NEVER,
        ("A", LARGEST): NEVER,
        ("A", SMALLEST): ALWAYS,
        ("A", f"{RANDOM} 0"): ALWAYS,
    }
    assert word(results(table), "8", "A") is Word.AGREES
    assert word(results(table | {("A", f"{RANDOM} 0"): NEVER}), "8", "A") is Word.UNDECIDED
    assert word(results(table | {("A", LARGEST): ALWAYS}), "8", "A") is Word.CONTRADICTS


def test_heads_are_picked_by_their_norm() -> None:
    """Catches a set of the smallest norms under the name of the largest, and random sets that every
    seed shares.
    """
    heads = ((1.0, 9.0, 2.0, 3.0), (8.0, 1.5, 0.5, 7.0))
    runs = [run("A", "0", seed, diverged=400, heads=heads)[1] for seed in (0, 1)]
    assert ranked(runs[0])[:4] == [(0, 1), (1, 0), (1, 3), (0, 3)]
    found = chosen(FULL, FULL.cases[1], runs)
    [largest] = [e.trial for e in found if e.row == LARGEST and e.trial.seed == 0]
    assert "; ".join(largest.changes).count("fp32") == 1 + 4  # the case's own, and four heads
    assert all(
        f"layer={layer} head={head} " in "; ".join(largest.changes)
        for layer, head in ((0, 1), (1, 0), (1, 3), (0, 3))
    )
    drawn = {e.trial.seed: e.trial.changes for e in found if e.row == f"{RANDOM} 0"}
    assert drawn[0] != drawn[1]


def test_sets_of_heads_are_told_without_the_heads_alone() -> None:
    """Catches row 8 that stays hidden until each of 16 heads was tried alone, and layers that fail
    late but are trained for as few steps as those that fail early.
    """
    case = FULL.cases[1]
    first = [e for row in rows(case, FULL.config)[:2] for e in of_row(FULL, case, row)]
    sets = chosen(FULL, case, [run("A", "0", 0, diverged=400)[1]])
    alone = [e for row in rows(case, FULL.config)[-2:] for e in of_row(FULL, case, row)]
    found = {e.trial for e in (*first, *sets, alone[0])}
    assert whole([*first, *sets, *alone], found) == [*first, *sets]
    layer = of_layer(FULL.config, 1)
    steps = {
        c.name: {e.trial.steps for row in layer for e in of_row(FULL, c, row)}
        for c in FULL.cases[2:5]
    }
    assert steps == {"A'": {1500}, "B": {1500}, "C": {1000}}


def test_layer_is_the_one_whose_norm_grew() -> None:
    """Catches rows 3 and 4 judged at another layer than row 2 found."""
    table = {("A", "0"): ALWAYS, ("A", "0'"): NEVER}
    for layer, (only, but) in enumerate([(NEVER, ALWAYS), (ALWAYS, NEVER)]):
        table |= {("A", f"3 only layer {layer}"): only, ("A", f"4 all but layer {layer}"): but}
    r = results(table, heads=((1.0, 2.0), (3.0, 1.0)))  # layer 1
    assert [word(r, figure, "A") for figure in "234"] == [Word.AGREES] * 3


def test_factorial_tells_before_from_after() -> None:
    """Catches the two halves of the O path taken for each other, and tiles or scores for where O is
    rounded.
    """
    levels = [(s, m, t) for s in ("BF16", "FP32") for m in ("BF16", "FP32") for t in (1, 4)]

    def made(before, after):
        return results(
            {
                ("A", cell(half, *level)): steps
                for level in levels
                for half, steps in (("before", before), ("after", after), ("both", ALWAYS))
            }
        )

    claim = "rounding O before"
    assert word(made(ALWAYS, NEVER), "control", "A", claim) is Word.AGREES
    assert word(made(NEVER, ALWAYS), "control", "A", claim) is Word.CONTRADICTS
    assert word(made(ALWAYS, SOME), "control", "A", claim) is Word.UNDECIDED


def test_drift_foretells_divergence() -> None:
    """Catches the sides swapped (small drift kills), and a relation seen where there is none."""

    def of(dead: float, alive: float) -> Word:
        made = [run("A", "0", s, diverged=400, drift=dead + s) for s in range(5)] + [
            run("A", "7", s, drift=alive + s) for s in range(5)
        ]
        return identity(gathered(made)).word

    assert of(10.0, 1.0) is Word.AGREES
    assert of(1.0, 10.0) is Word.CONTRADICTS
    assert of(1.0, 1.0) is Word.CONTRADICTS  # 0.5: no relation
    assert above([3.0, 1.0], [2.0, 1.0]) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert math.isnan(above([], [1.0]))


def test_probability_is_that_over_all_pairs() -> None:
    """Catches a statistic of SciPy that is another than the share of pairs, to the last bit."""
    rng = np.random.default_rng(0)
    for n, m in rng.integers(1, 30, (50, 2)):
        dead, alive = rng.integers(0, 20, n) / 8.0, rng.integers(0, 20, m) / 8.0
        pairs = (dead[:, None] > alive) + 0.5 * (dead[:, None] == alive)
        assert above(dead.tolist(), alive.tolist()) == pairs.mean()
    assert above([1.0, 1.0], [1.0]) == 0.5  # all ties: no warning either


def test_drift_between_seeds_of_one_arithmetic() -> None:
    """Catches pairs of runs of two arithmetics, whose drifts differ whatever the seeds do."""

    def of(
        first: float, second: float
    ) -> tuple[
        Word, str
    ]:  # a row in which one seed of two dies, far above and far below another row
        made = [
            run("A", "0", 0, diverged=400, drift=first),
            run("A", "0", 1, drift=second),
            run("A", "7", 0, drift=1e-9),
        ]
        told = within(gathered([*made, run("A", "centred", 0, diverged=300, drift=1e9)]))
        return told.word, told.measured

    assert of(2.0, 1.0)[0] is Word.AGREES and "1 pairs in 1 arms" in of(2.0, 1.0)[1]
    assert of(1.0, 2.0)[0] is Word.CONTRADICTS
    assert (
        within(gathered([run("A", "0", s, diverged=4, drift=1.0) for s in range(3)])).word
        is Word.NOT_TESTABLE
    )


def test_answer_names_what_each_repair_cures() -> None:
    """Catches a sentence that calls a repair a cure where runs diverged, or hides one."""
    table = (
        {(case, "0"): ALWAYS for case in "AB"}
        | {(case, "0'"): NEVER for case in "AB"}
        | {("N", "0"): NEVER}
    )
    table |= {("A", "7"): NEVER, ("B", "7"): SOME, ("A", "centred"): NEVER, ("B", "centred"): NEVER}
    text = answer(results(table))
    assert "O in FP32 cures A and does not cure B (1 of 3 diverged)" in text
    assert "whatever was rounded, cures A and B" in text
    assert "qiu-yao as it is diverged in 0 of 3" in text


def test_answer_names_a_case_that_the_centred_delta_makes_worse() -> None:
    """Catches a case left out of the sentence since it failed in two runs of three before."""
    table = {("A", "0"): ALWAYS, ("A", "0'"): NEVER, ("A", "centred"): NEVER}
    table |= {("B", "0"): (400, None, 500), ("B", "0'"): NEVER}
    text = answer(results(table | {("B", "centred"): ALWAYS}))
    assert "That does not help B (3 of 3 diverged, 2 without it)" in text
    assert "does not help" not in answer(results(table | {("B", "centred"): SOME}))


def test_times_are_medians_of_those_that_diverged() -> None:
    """Catches censored runs counted as diverged at their last step."""
    r = results({("A", "0"): (100, None, 300)})
    assert times(r.of("A", "0")) == "2 of 3, step 200 [100, 300]"
