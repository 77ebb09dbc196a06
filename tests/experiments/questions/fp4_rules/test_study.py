"""`roundscope reproduce fp4-rules`, on made-up numbers."""

import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.questions.fp4_rules import rules as named
from roundscope.experiments.questions.fp4_rules.rules import NAMED
from roundscope.experiments.questions.fp4_rules.study import (
    OF_EACH,
    PRODUCTS,
    PUBLISHED,
    REAL,
    TENSORS,
    TOGETHER,
    answer,
    claims,
    collected,
    picture,
)
from roundscope.tools.results.run import Run

AS_CLAIMED = {
    named.NVFP4: -4e-3,
    named.RHT: -5e-3,
    named.FLOOR_SR: -1e-2,
    named.SR: 0.0,
    named.UNIFORM: 0.0,
}
ERRORS = {named.FOUR: 0.09, named.EDEN: 0.1, named.RHT_SR: 0.16}
THE_OTHER_WAY = {
    named.NVFP4: 4e-3,
    named.RHT: 5e-3,
    named.FLOOR_SR: 1e-2,
    **dict.fromkeys((named.UNIFORM, named.TSENG_SR, named.SR, named.SR_ROOM, named.EDEN), 2e-3),
}


def made(gains, errors, spread=0.0, seeds=3):
    """Results in which every kind of tensor has these gains and errors, others 0 and 0.12."""
    runs = []
    for seed in range(seeds):
        rows = []
        for i, rule in enumerate(NAMED):
            e, off = errors.get(rule, 0.12), spread * ((seed + i % 5) % 3 - 1)
            numbers = {"not_finite": 0.0, "gain": gains.get(rule, 0.0) + off}
            numbers["error"] = e * (1 + 100 * off)
            parts = {p: e * PUBLISHED[p] ** 0.5 for p in ("scale", "dead_zone", "grid")}
            more = {"dead": 0.1, "cross": PUBLISHED["cross"], **parts}
            rows += [{"rule": rule, "of": of, **numbers, **more} for of in ("X", "W", "G")]
            rows += [{"rule": rule, "of": of, **numbers, **more} for of in ("Q, K, V", "dO")]
            rows += [{"rule": rule, "of": of, **numbers} for of in (*PRODUCTS, "S")]
        extra = {"rows": tuple(rows)}
        condition = type("Condition", (), {"seed": seed})()
        runs.append(Run(condition=condition, steps=1, diverged=None, loss=0.0, extra=extra))
    return collected(runs)


@pytest.mark.parametrize(
    ("gains", "errors", "spread", "word"),
    [
        (AS_CLAIMED, ERRORS, 1e-9, Word.AGREES),
        (THE_OTHER_WAY, {named.FOUR: 0.13, named.EDEN: 0.16}, 1e-9, Word.CONTRADICTS),
        (AS_CLAIMED, ERRORS, 8e-3, Word.UNDECIDED),
    ],
)
def test_a_claim_that_holds_one_that_fails_and_one_that_decides_nothing(
    gains, errors, spread, word
):
    """A range of the wrong side, a claim read from another rule's numbers."""
    words = [v.word for v in claims(made(gains, errors, spread)) if "sqrt" not in v.claim]
    # the first four are of published shares, which are exact here
    assert words[4:] == [word] * 3 * (3 + 1 + 5 + 1)


def test_every_rule_is_in_the_tables_the_picture_and_the_answer():
    """A rule or a kind that is left out; infinities that are not told."""
    r = made(AS_CLAIMED, ERRORS)
    assert [row[0] for row in TOGETHER.rows(r)] == [*NAMED]
    kinds = [*(TENSORS | PRODUCTS | REAL).values()]
    assert [row[:2] for row in OF_EACH.rows(r)] == [[k, rule] for k in kinds for rule in NAMED]
    assert "0 numbers became infinite" in answer(r) and picture(r) is not None
