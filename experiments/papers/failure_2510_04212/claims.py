"""The paper's ablation table (rows 0 to 10) beside our measurements in every case.

Here are also the rules by which counts of diverged runs become words.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.verdicts import Verdict, Word, interval
from roundscope.experiments.papers.failure_2510_04212.conditions import (
    ALONE,
    AMPLIFIED,
    EXACT,
    FAILS,
    FP32,
    OTHER_DELTA,
    PUBLISHED,
    UNFUSED,
    Case,
)
from roundscope.experiments.papers.failure_2510_04212.trials import (
    LARGEST,
    RANDOM,
    SMALLEST,
    Own,
    Results,
)

RULES = (
    "A row is judged in a case whose every run diverged while no FP32 run did; in any other it is"
    " not testable. 'Stable': agrees if no run of the row diverged, contradicts if more than half"
    " did, else undecided. 'Explodes': agrees if all did, contradicts if none did, else undecided."
    " Rows 3 and 4 are judged at the layer whose ||W_Q,h|| was largest before divergence in most"
    " failing runs. Row 8 agrees only if the heads that were picked by their norm cure and random"
    " ones, as many, do not. k of n are runs with different weights and batches."
)
STABLE = {
    "5": "delta = rowsum(P dP): stable",
    "6": "delta from O recomputed in FP32: stable",
    "7": "O in FP32 in the forward: stable",
    "9": "only PV in FP32, output rounded: stable",
    "10 beta 2": "stabilized softmax, beta 2: stable",
    "10 beta 7": "stabilized softmax, beta 7: stable",
}
LARGER = (
    "not shown here: the paper's model is 12 layers, width 768, context 1024, thousands of steps"
)


def stable_word(own: Own) -> Word:
    """Return the word for runs that should not diverge."""
    if not own:
        return Word.NOT_TESTABLE
    if not diverged(own):
        return Word.AGREES
    return Word.CONTRADICTS if 2 * diverged(own) > len(own) else Word.UNDECIDED


def explodes_word(own: Own) -> Word:
    """Return the word for runs that should diverge."""
    if not own:
        return Word.NOT_TESTABLE
    if diverged(own) == len(own):
        return Word.AGREES
    return Word.UNDECIDED if diverged(own) else Word.CONTRADICTS


def verdict(
    figure: str, claim: str, case: str, word: Word, measured: str, note: str = ""
) -> Verdict:
    """Return the verdict on one row in one case."""
    return Verdict(
        figure=figure, claim=claim, case=case, sizes="", word=word, measured=measured, note=note
    )


def repair(figure: str, claim: str, case: Case, r: Results, row: str) -> Verdict:
    """Return the verdict on a row that should be stable.

    It is not testable where the case does not fail, or the row was not run.
    """
    own = r.of(case.name, row)
    if not own or not r.fails(case.name):
        measured = f"the case itself: {times(r.of(case.name, FAILS))}"
        return verdict(figure, claim, case.name, Word.NOT_TESTABLE, measured)
    excess = r.excess(case.name, own)
    left = f"; loss above FP32 {interval(excess, ' nats')}" if excess.seeds else ""
    return verdict(figure, claim, case.name, stable_word(own), times(own) + left)


def judged(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on every row of the paper in every case."""
    cases, steps = r.scale.cases, r.scale.steps
    for case in cases:
        word = Word.AGREES if r.fails(case.name) else Word.UNDECIDED
        measured = f"{times(r.of(case.name, FAILS))} in {steps} steps"
        note = "" if word is Word.AGREES else LARGER
        yield verdict("0", "BF16 FlashAttention explodes", case.name, word, measured, note)
    for case in cases:
        exact = r.of(case.name, FP32)
        measured = f"{times(exact)} in {steps} steps"
        yield verdict("0'", "FP32 attention is stable", case.name, stable_word(exact), measured)
    for case in cases:
        if own := r.of(case.name, UNFUSED):
            measured = f"{times(own)}, unfused in BF16"
            claim = "standard attention is stable"
            yield verdict("0'", claim, case.name, stable_word(own), measured)
    claim = "one tile as large as the context explodes too: tiling is innocent"
    for case in cases:
        if tiled := r.of(case.name, "1"):
            whole = r.of(case.name, FAILS)
            measured = f"one tile {times(whole)}; 4 tiles {times(tiled)}"
            yield verdict("1", claim, case.name, explodes_word(whole), measured)
    for case in cases:
        if any(row.startswith("3 ") for row in r.rows(case.name)):
            yield from _layers(r, case)
    for row, claim in STABLE.items():
        for case in cases:
            if case.name == OTHER_DELTA and row == "5":
                yield _natural(r, claim)
            elif case.name != PUBLISHED and r.of(case.name, row):
                yield _repair(r, case, row, claim)
    yield _heads(r)


def _layers(r: Results, case: Case) -> Iterator[Verdict]:
    """Yield the verdicts on rows 2 to 4: the layer that grows, alone low, alone exact."""
    if not r.fails(case.name):
        yield repair("3, 4", "one layer is necessary and sufficient", case, r, "")
        return
    # the layer with the largest ||W_Q,h|| before divergence in most runs
    grown = [
        int(np.argmax([max(row) for row in run.extra["heads"]])) for run in r.of(case.name, FAILS)
    ]
    layer, runs = int(np.bincount(grown).argmax()), len(grown)
    votes = grown.count(layer)
    word = Word.UNDECIDED if 2 * votes > runs else Word.CONTRADICTS
    measured = f"largest ||W_Q,h|| before divergence in layer {layer} in {votes} of {runs} runs"
    claim = "||W_Q|| grows in one layer"
    yield verdict("2", claim, case.name, Word.AGREES if votes == runs else word, measured)
    for figure, place, claim, word_of in (
        ("3", ALONE, "low in that layer only: explodes", explodes_word),
        ("4", EXACT, "exact in that layer only: stable", stable_word),
    ):
        start = f"{figure} {place} layer "
        own = r.of(case.name, f"{start}{layer}")
        by_layer = {
            row.removeprefix(start): times(r.of(case.name, row))
            for row in r.rows(case.name)
            if row.startswith(start)
        }
        note = f"by layer: {', '.join(f'{i}: {counts}' for i, counts in by_layer.items())}"
        yield verdict(figure, claim, case.name, word_of(own), times(own), note)


def _repair(r: Results, case: Case, row: str, claim: str) -> Verdict:
    found = repair(row, claim, case, r, row)
    if row.startswith("10") and case.mode != "ties-to-even":
        note = (
            "this mode biases every sum, with or without several P = 1, which is what the repair is"
            " made for"
        )
        return replace(found, word=Word.NOT_TESTABLE, note=note)
    if case.name != AMPLIFIED and 2 * diverged(r.of(case.name, "7")) > len(r.of(case.name, "7")):
        return replace(found, note="O is not what kills in this case (row 7)")
    return found


def _natural(r: Results, claim: str) -> Verdict:
    """Return the verdict on row 5 on qiu-yao unchanged: case C against case N."""
    before, after = r.of(PUBLISHED, FAILS), r.of(OTHER_DELTA, FAILS)
    kills = 2 * diverged(after) > len(after) and r.fails(OTHER_DELTA)
    word = Word.CONTRADICTS if kills else stable_word(after)
    note = "the repair makes qiu-yao as it is fail" if word is Word.CONTRADICTS else ""
    measured = f"{times(after)}; with delta = rowsum(dO O) {times(before)}"
    return verdict("5", claim, OTHER_DELTA, word, measured, note)


def _heads(r: Results) -> Verdict:
    """Return the verdict on row 8 in the case that isolates the paper's mechanism."""
    claim = "O in FP32 in the heads with the largest ||W_Q,h||: stable"
    own, least = r.of(AMPLIFIED, LARGEST), r.of(AMPLIFIED, SMALLEST)
    if not own:
        return verdict("8", claim, AMPLIFIED, Word.NOT_TESTABLE, "not run")
    drawn, exact, low = (
        [run for row in r.rows(AMPLIFIED) if row.startswith(start) for run in r.of(AMPLIFIED, row)]
        for start in (RANDOM, f"8 {EXACT} head", f"8 {ALONE} head")
    )
    word = stable_word(own)
    if word is Word.AGREES and 2 * diverged(drawn) < len(drawn):
        word = Word.UNDECIDED
    measured = (
        f"half of all heads in FP32: the largest {times(own)}; the smallest {times(least)};"
        f" random {times(drawn)}"
    )
    note = f"one head in FP32, any: {times(exact)}; low in one head only, any: {times(low)}"
    return verdict("8", claim, AMPLIFIED, word, measured, note)
