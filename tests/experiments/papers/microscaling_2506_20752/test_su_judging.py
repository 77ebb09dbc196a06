"""From made-up runs to words: signs, shares, limits of rates, and interventions against their
shams.
"""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from roundscope.experiments.framework import counts
from roundscope.experiments.framework.counts import at_least, counted, share
from roundscope.experiments.framework.estimates import ratio
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.microscaling_2506_20752 import claims
from roundscope.experiments.papers.microscaling_2506_20752.claims import (
    Effect,
    limits,
    outcome,
    outcomes,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import FULL, QUICK, Found
from roundscope.experiments.train.student.arms import UNCHANGED
from roundscope.experiments.train.student.run import paired
from tests.experiments.papers.microscaling_2506_20752.made import run


def signs(first, second):
    return counts.signs(paired(first, second))


def seeds(name, steps, **more):
    return [run(name, seed, step, **more) for seed, step in enumerate(steps)]


def test_signs_need_five_seeds_of_five():
    """A verdict from too few seeds; runs that both live, or die at once, counted as wins; arms
    paired across seeds.
    """
    dead, alive = [400, 410, 420, 430, 440], [None] * 5
    assert signs(seeds("a", dead), seeds("b", alive)).word is Word.AGREES
    assert signs(seeds("a", alive), seeds("b", dead)).word is Word.CONTRADICTS
    assert signs(seeds("a", dead[:4]), seeds("b", alive[:4])).word is Word.UNDECIDED
    assert (
        signs(seeds("a", alive), seeds("b", alive)).word
        is signs(seeds("a", dead), seeds("b", dead)).word
        is Word.UNDECIDED
    )
    assert signs(seeds("a", dead), seeds("b", reversed(dead))) == signs(
        seeds("b", dead), seeds("a", reversed(dead))
    )
    assert at_least(5, 5, 0.5) == pytest.approx(1 / 32) and at_least(0, 5, 0.5) == 1
    by_hand = sum(
        Fraction(math.comb(5, k)) * Fraction(1, 6) ** k * Fraction(5, 6) ** (5 - k)
        for k in (3, 4, 5)
    )
    assert at_least(3, 5, 1 / 6) == pytest.approx(float(by_hand))


def test_a_format_that_kills_some_runs_is_undecided_and_none_contradicts():
    """Catches "contradicts" of 2 runs of 12 where FP32 loses none."""

    def of(*steps):
        own = [*steps, *[None] * (12 - len(steps))]
        return claims._lone(seeds("mx", own), seeds("fp32", [None] * 12))

    assert (of(), of(400, 500), of(*[400] * 12)) == (
        Word.CONTRADICTS,
        Word.UNDECIDED,
        Word.AGREES,
    )


def test_more_steps_and_the_code_s_repair_of_layer_norm():
    """FP32 that dies later said to live; a ratio of steps upside down; a repair of what did not
    fail said to avert it; the loss of another arm.
    """
    formats = FULL.fix[1]
    longer = FULL.settings[5]
    assert longer.config.steps == 1500
    lost = {
        (longer.name, "fp32"): seeds("fp32", [800] * 12),
        (longer.name, "mxfp4"): seeds("mxfp4", [400] * 12),
    }
    lives, later = claims._longer(Found(scale=FULL, trained=lost))
    assert lives.word is Word.CONTRADICTS and later.measured.startswith("at 2x [2, 2]")
    fix = {name: seeds(name, [None] * 4) for name in formats}
    plain, averts, lowers = list(claims._fixes(Found(scale=FULL, fix=fix)))[:3]
    assert plain.word is Word.UNDECIDED and averts.word is Word.NOT_TESTABLE
    assert "LN in FP32" in lowers.claim and lowers.word is not Word.AGREES
    fix[formats[3]] = [replace(r, loss=0.04 + 1e-4 * n) for n, r in enumerate(fix[formats[3]])]
    found = {v.claim: v for v in claims._fixes(Found(scale=FULL, fix=fix))}
    assert found["ours: a bump of the scales lowers the loss by 0.05 % or more"].word is Word.AGREES


def test_intervals_of_shares_by_their_definition():
    """An interval of one tail, or the wrong tail: where no run of five diverged, (1 - p)^5 = 0.025
    at its upper end.
    """
    assert share(0, 5) == pytest.approx((0.0, 1 - 0.025 ** (1 / 5))) and share(
        5, 5
    ) == pytest.approx((0.025 ** (1 / 5), 1.0))
    low, high = share(2, 6)
    assert sum(
        math.comb(6, k) * low**k * (1 - low) ** (6 - k) for k in range(2, 7)
    ) == pytest.approx(0.025)
    assert sum(
        math.comb(6, k) * high**k * (1 - high) ** (6 - k) for k in range(3)
    ) == pytest.approx(0.025)
    assert counted(seeds("a", [300, None, 100])).startswith("2 of 3 [") and counted(
        seeds("a", [300, None, 100])
    ).endswith("[100, 300]")


def test_limits_leave_out_what_the_rates_do_not_bracket():
    """A seed that no rate felled taken for one that the highest did, or one that the lowest felled
    for one that it did not.
    """
    rates = (0.1, 0.2, 0.4)
    table = {0: (None, 50, 40), 1: (None, None, None), 2: (90, 50, 40), 3: (None, None, 40)}
    own = [
        run("mx", seed, step, lr=lr)
        for seed, steps in table.items()
        for lr, step in zip(rates, steps, strict=True)
    ]
    exact = [run("fp32", seed, 9 if lr == 0.4 else None, lr=lr) for seed in table for lr in rates]
    assert limits(own) == {0: 0.2, 3: 0.4}
    e = ratio(limits(own), limits(exact))
    assert e.mean == pytest.approx(math.sqrt(0.5 * 1.0)) and e.seeds == 2


def parting(table, lead=20):
    """(seed, lead) -> arm -> run, of arm -> steps of divergence by seed."""
    count = len(next(iter(table.values())))
    return {
        (seed, lead): {name: run(name, seed, steps[seed]) for name, steps in table.items()}
        for seed in range(count)
    }


NULLS = {
    UNCHANGED: [500] * 5,
    "sham 0": [520] * 5,
    "sham 1": [490] * 5,
    "sham 2": [505] * 5,
    "sham 3": [510] * 5,
}


def test_an_arm_counts_only_beyond_its_shams():
    """A delay that chaos explains; an arm that never diverged though its shams need not have
    either; two lucky seeds of five.
    """
    table = NULLS | {
        "cured": [None] * 5,
        "late": [700] * 5,
        "inside": [515] * 5,
        "soon": [480] * 5,
        "lucky": [None, None, 500, 500, 500],
        "mostly": [None, None, 600, 500, 500],
    }
    found = {o.name: o for o in outcomes(parting(table), 20)}
    effects = {name: o.effect for name, o in found.items()}
    assert effects == {
        "cured": Effect.AVERTED,
        "late": Effect.DELAYED,
        "inside": Effect.NONE,
        "soon": Effect.HASTENED,
        "lucky": Effect.NONE,
        "mostly": Effect.DELAYED,
    }
    assert (
        found["late"].delay.mean == 700 - 505
        and found["cured"].delay.mean == 1000 - 505
        and found["cured"].censored
    )
    assert found["late"].shams == 4 and found["late"].scatter == pytest.approx(
        math.sqrt((5**2 + 15**2 + 15**2 + 5**2) / 5)
    )
    calm = NULLS | {"sham 1": [None] * 5, "cured": [None] * 5}
    assert outcome(parting(calm), 20, "cured").effect is Effect.NONE
    assert outcome(parting({name: [None] * 5 for name in table}), 20, "cured").runs == {}


def test_verdicts_on_arms():
    """A hybrid that only delays told as stable; an arm without effect told as refuted; the arm of
    another lead.
    """
    table = NULLS | {
        "activations BF16, LN in FP32": [700] * 5,
        "LN in FP32": [None] * 5,
        "RCEIL": [500] * 5,
        "backward BF16": [400] * 5,
    }
    found = Found(scale=replace(QUICK, leads=(100, 20)), parted=parting(table))
    rows = {v.case.partition(",")[0] if "," in v.case else v.case: v for v in claims.arms(found)}
    words = {v.case: v.word for v in claims.arms(found)}
    assert words["LN in FP32 (no_ln_q), 20 steps before"] is Word.AGREES
    assert words["activations BF16, LN in FP32, 20 steps before"] is Word.CONTRADICTS
    assert (
        words["RCEIL, 20 steps before"] is Word.UNDECIDED
        and words["backward BF16 (no_bp_quant), 20 steps before"] is Word.CONTRADICTS
    )
    assert rows["shams"].word is Word.AGREES and "20 of 20" not in rows["shams"].measured
    assert [v.word for v in claims.arms(Found(scale=QUICK))] == [Word.NOT_TESTABLE]
