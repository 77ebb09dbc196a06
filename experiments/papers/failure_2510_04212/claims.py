"""The paper's ablation table (rows 0 to 10) beside our measurements in every case, and controls.

Here are also the rules by which counts of diverged runs become words. The controls, which the
paper does not have, are size against sign, other modes, other repairs, presets, the factorial, and
the rest of dS.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from roundscope.experiments.framework.counts import above, counted, diverged, times
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, verdict_on
from roundscope.experiments.papers.failure_2510_04212 import trials
from roundscope.tools.results.run import Run

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


def stable_word(own: trials.Own) -> Word:
    """Return the word for runs that should not diverge."""
    if not own:
        return Word.NOT_TESTABLE
    if not diverged(own):
        return Word.AGREES
    return Word.CONTRADICTS if 2 * diverged(own) > len(own) else Word.UNDECIDED


def explodes_word(own: trials.Own) -> Word:
    """Return the word for runs that should diverge."""
    if not own:
        return Word.NOT_TESTABLE
    if diverged(own) == len(own):
        return Word.AGREES
    return Word.UNDECIDED if diverged(own) else Word.CONTRADICTS


def repair(figure: str, claim: str, case: trials.Case, r: trials.Results, row: str) -> Verdict:
    """Return the verdict on a row that should be stable, if it was run and the case fails."""
    own = r.of(case.name, row)
    if not own or not r.fails(case.name):
        measured = f"the case itself: {times(r.of(case.name, trials.FAILS))}"
        return verdict_on(figure, claim, case.name, Word.NOT_TESTABLE, measured)
    excess = r.excess(case.name, own)
    left = f"; loss above FP32 {interval(excess, ' nats')}" if excess.seeds else ""
    return verdict_on(figure, claim, case.name, stable_word(own), times(own) + left)


def judged(r: trials.Results) -> list[Verdict]:
    """Return verdicts on every row of the paper in every case, then on the controls of ours."""
    return [*_rows(r), *_controls(r)]


def _rows(r: trials.Results) -> Iterator[Verdict]:
    cases, steps = r.scale.cases, r.scale.steps
    for case in cases:
        word = Word.AGREES if r.fails(case.name) else Word.UNDECIDED
        measured = f"{times(r.of(case.name, trials.FAILS))} in {steps} steps"
        note = "" if word is Word.AGREES else LARGER
        yield verdict_on("0", "BF16 FlashAttention explodes", case.name, word, measured, note=note)
    for case in cases:
        exact = r.of(case.name, trials.FP32)
        measured = f"{times(exact)} in {steps} steps"
        yield verdict_on("0'", "FP32 attention is stable", case.name, stable_word(exact), measured)
    for case in cases:
        if own := r.of(case.name, trials.UNFUSED):
            measured = f"{times(own)}, unfused in BF16"
            claim = "standard attention is stable"
            yield verdict_on("0'", claim, case.name, stable_word(own), measured)
    claim = "one tile as large as the context explodes too: tiling is innocent"
    for case in cases:
        if tiled := r.of(case.name, "1"):
            whole = r.of(case.name, trials.FAILS)
            measured = f"one tile {times(whole)}; 4 tiles {times(tiled)}"
            yield verdict_on("1", claim, case.name, explodes_word(whole), measured)
    for case in cases:
        if any(row.startswith("3 ") for row in r.rows(case.name)):
            yield from _layers(r, case)
    for row, claim in STABLE.items():
        for case in cases:
            if case.name == trials.OTHER_DELTA and row == "5":
                before, after = (
                    r.of(trials.PUBLISHED, trials.FAILS),
                    r.of(trials.OTHER_DELTA, trials.FAILS),
                )
                kills = 2 * diverged(after) > len(after) and r.fails(trials.OTHER_DELTA)
                word = Word.CONTRADICTS if kills else stable_word(after)
                note = "the repair makes qiu-yao as it is fail" if word is Word.CONTRADICTS else ""
                measured = f"{times(after)}; with delta = rowsum(dO O) {times(before)}"
                yield verdict_on("5", claim, trials.OTHER_DELTA, word, measured, note=note)
            elif case.name != trials.PUBLISHED and r.of(case.name, row):
                yield _repair(r, case, row, claim)
    yield _heads(r)


def _layers(r: trials.Results, case: trials.Case) -> Iterator[Verdict]:
    """Yield the verdicts on rows 2 to 4: the layer that grows, alone low, alone exact."""
    if not r.fails(case.name):
        yield repair("3, 4", "one layer is necessary and sufficient", case, r, "")
        return
    failing = r.of(case.name, trials.FAILS)
    (layer, votes), runs = trials.grown(failing), len(failing)
    word = Word.UNDECIDED if 2 * votes > runs else Word.CONTRADICTS
    measured = f"largest ||W_Q,h|| before divergence in layer {layer} in {votes} of {runs} runs"
    claim = "||W_Q|| grows in one layer"
    yield verdict_on("2", claim, case.name, Word.AGREES if votes == runs else word, measured)
    for figure, place, claim, word_of in (
        ("3", trials.ALONE, "low in that layer only: explodes", explodes_word),
        ("4", trials.EXACT, "exact in that layer only: stable", stable_word),
    ):
        start = f"{figure} {place} layer "
        own = r.of(case.name, f"{start}{layer}")
        by_layer = {
            row.removeprefix(start): counted(r.of(case.name, row))
            for row in r.rows(case.name)
            if row.startswith(start)
        }
        note = f"by layer: {', '.join(f'{i}: {counts}' for i, counts in by_layer.items())}"
        yield verdict_on(figure, claim, case.name, word_of(own), counted(own), note=note)


def _repair(r: trials.Results, case: trials.Case, row: str, claim: str) -> Verdict:
    found = repair(row, claim, case, r, row)
    if row.startswith("10") and case.mode != "ties-to-even":
        note = (
            "this mode biases every sum, with or without several P = 1, which is what the repair is"
            " made for"
        )
        return replace(found, word=Word.NOT_TESTABLE, note=note)
    if case.name != trials.AMPLIFIED and 2 * diverged(r.of(case.name, "7")) > len(
        r.of(case.name, "7")
    ):
        return replace(found, note="O is not what kills in this case (row 7)")
    return found


def _heads(r: trials.Results) -> Verdict:
    """Return the verdict on row 8 in the case that isolates the paper's mechanism."""
    claim = "O in FP32 in the heads with the largest ||W_Q,h||: stable"
    own, least = r.of(trials.AMPLIFIED, trials.LARGEST), r.of(trials.AMPLIFIED, trials.SMALLEST)
    if not own:
        return verdict_on("8", claim, trials.AMPLIFIED, Word.NOT_TESTABLE, "not run")
    drawn, exact, low = (
        [
            run
            for row in r.rows(trials.AMPLIFIED)
            if row.startswith(start)
            for run in r.of(trials.AMPLIFIED, row)
        ]
        for start in (trials.RANDOM, f"8 {trials.EXACT} head", f"8 {trials.ALONE} head")
    )
    word = stable_word(own)
    if word is Word.AGREES and 2 * diverged(drawn) < len(drawn):
        word = Word.UNDECIDED
    measured = (
        f"half of all heads in FP32: the largest {counted(own)}; the smallest {counted(least)};"
        f" random {counted(drawn)}"
    )
    note = f"one head in FP32, any: {counted(exact)}; low in one head only, any: {counted(low)}"
    note = note if exact and low else ""
    return verdict_on("8", claim, trials.AMPLIFIED, word, measured, note=note)


CONTROL, OURS = "control", "ours"
BOOTSTRAPS = 1000
BEYOND = {
    "centred": "delta = rowsum(P dP) / rowsum(P), rows of dS that sum to 0: stable",
    "scores": "scores, m and l in FP32, the rest of the case low: stable",
    "same scores": "the backward rounds its scores as the forward did: stable",
}
PRESETS = {
    "fa2-bf16": ("production FlashAttention in BF16 is stable", stable_word),
    trials.ONCE: (
        "unfused BF16 attention diverges if its backward rounds its scores once, its forward twice",
        explodes_word,
    ),
}
FACTORS = {  # name -> (position in the names of `conditions.cell`, levels)
    "scores": (2, ("BF16", "FP32")),
    "m and l": (3, ("BF16", "FP32")),
    "tiles": (4, ("1", "4")),
}
CONTROL_RULES = (
    "Controls. Size: the same events, errors of the same RMS without bias; agrees if none of these"
    " runs diverged. 'Earlier': agrees if every seed diverged earlier than nearest-even did or"
    " where it did not, contradicts if none did. The factorial: agrees if every run with O rounded"
    " before its normalization only diverged and none with it rounded after only, contradicts if"
    " the latter diverged at least as often. The rest of dS: all runs of all cases; the number is"
    " the probability that a run that diverged had a larger drift, after the warm-up, than one that"
    " did not (0.5: no relation): agrees from 0.95, contradicts up to 0.5. Between seeds of one"
    " row: the same over pairs of runs of one row; intervals are bootstraps over rows."
)


def _controls(r: trials.Results) -> Iterator[Verdict]:
    for case in r.scale.cases:
        if case.mode == "toward-zero":
            even = r.of(case.name, f"ties-to-even {case.bits - 1}")
            worse = r.of(case.name, f"stochastic {case.bits - 1}")
            claim = (
                "it is the sign of O's error, not its size: nearest-even of the same RMS is stable"
            )
            more = f"; stochastic with 1.4 times the RMS: {times(worse)}" if worse else ""
            word = stable_word(even) if r.fails(case.name) else Word.NOT_TESTABLE
            measured = (
                f"p = {case.bits - 1} nearest-even {times(even)}; p = {case.bits} toward zero"
                f" {times(r.of(case.name, trials.FAILS))}{more}"
            )
            yield verdict_on(CONTROL, claim, case.name, word, measured)
    for case in r.scale.cases:
        yield from _modes(r, case)
    for row, claim in BEYOND.items():
        for case in r.scale.cases:
            if r.of(case.name, row):
                yield repair(OURS, claim, case, r, row)
    for row, (claim, word_of) in PRESETS.items():
        for case in r.scale.cases:
            if own := r.of(case.name, row):
                yield verdict_on(CONTROL, claim, case.name, word_of(own), times(own))
    for case in r.scale.cases:
        if r.of(case.name, trials.cell("both", "FP32", "FP32", 1)):
            yield _factorial(r, case)
    yield identity(r)
    yield within(r)


def _modes(r: trials.Results, case: trials.Case) -> Iterator[Verdict]:
    """Yield verdicts on stochastic rounding of the O path, and on biased modes."""
    if r.of(case.name, f"stochastic {case.bits}"):
        claim = "stochastic rounding of the O path alone: stable"
        yield repair(CONTROL, claim, case, r, f"stochastic {case.bits}")
    for mode in ("toward-zero", "ties-to-away"):
        own, base = r.of(case.name, f"{mode} {case.bits}"), r.of(case.name, trials.FAILS)
        if own and case.mode == "ties-to-even":
            first = [a.time < b.time for a, b in zip(own, base, strict=True)]
            word = Word.UNDECIDED if any(first) else Word.CONTRADICTS
            claim = f"{mode} on the O path diverges earlier than nearest-even"
            measured = f"{times(own)}; nearest-even {times(base)}"
            yield verdict_on(
                CONTROL, claim, case.name, Word.AGREES if all(first) else word, measured
            )


def _factorial(r: trials.Results, case: trials.Case) -> Verdict:
    """Return the verdict on rounding before and after normalization; the other factors noted."""

    def pooled(level: str, position: int = 1) -> list[Run[trials.Trial]]:
        cells = [row for row in r.rows(case.name) if row.startswith("cell ")]
        own = [row for row in cells if row.split(" ")[position] == level]
        return [run for row in own for run in r.of(case.name, row)]

    before, after, both = map(pooled, trials.HALVES)
    as_often = diverged(after) * len(before) >= diverged(before) * len(after)
    clear = diverged(before) == len(before) and not diverged(after)
    word = Word.AGREES if clear else Word.CONTRADICTS if as_often else Word.UNDECIDED
    measured = f"before only {times(before)}; after only {times(after)}; both {times(both)}"
    effects = []
    for name, (position, levels) in FACTORS.items():
        runs = {level: pooled(level, position) for level in levels}
        each = (f"{level} {diverged(own)} of {len(own)}" for level, own in runs.items())
        effects.append(f"{name} {', '.join(each)}")
    claim = "rounding O before its normalization kills, rounding it after does not"
    return verdict_on(CONTROL, claim, case.name, word, measured, note="; ".join(effects))


def identity(r: trials.Results) -> Verdict:
    """Return the verdict on the rest of dS against divergence, over all runs of all cases."""
    dead, alive = ([trials.drift(run) for run in runs] for runs in trials.split(r))
    p = above(dead, alive)
    measured = (
        f"probability {p:.3f}; median drift of {len(dead)} runs that diverged"
        f" {trials.middle(dead):.2g}, of {len(alive)} that did not {trials.middle(alive):.2g}"
    )
    claim = (
        "runs whose rows of dS do not sum to zero, in one direction, diverge, whichever event made"
        " it; others do not"
    )
    return verdict_on(OURS, claim, "all", _foretold(p), measured)


# the drifts of a row's runs that diverged, of those that did not, and `above` of these
Arm = tuple[list[float], list[float], float]


def within(r: trials.Results) -> Verdict:
    """Return the same between seeds of one arithmetic: pairs of runs that only differ in seed."""
    by_runs: dict[tuple[trials.Trial, ...], Arm] = {}  # every arithmetic once
    for own in r.by.values():
        runs = [run for run in own if math.isfinite(trials.drift(run))]
        dead = [trials.drift(run) for run in runs if run.diverged is not None]
        alive = [trials.drift(run) for run in runs if run.diverged is None]
        by_runs[tuple(run.condition for run in runs)] = dead, alive, above(dead, alive)
    arms = list(by_runs.values())
    mixed = [arm for arm in arms if arm[0] and arm[1]]
    pairs = sum(len(dead) * len(alive) for dead, alive, _ in mixed)
    measured = (
        f"probability {_interval(mixed, paired)} over {pairs} pairs in {len(mixed)} arms; between"
        f" all runs {_interval(arms, pooled)}"
    )
    claim = (
        "of two seeds of one arithmetic, the one whose rows of dS drift more is the one that"
        " diverges"
    )
    return verdict_on(OURS, claim, "all", _foretold(paired(mixed) if mixed else math.nan), measured)


def paired(arms: Sequence[Arm]) -> float:
    """Return the probability over the pairs inside arms."""
    weights = [len(dead) * len(alive) for dead, alive, _ in arms]
    return sum(w * p for w, (_, _, p) in zip(weights, arms, strict=True)) / sum(weights)


def pooled(arms: Sequence[Arm]) -> float:
    """Return the probability over all pairs of runs."""
    return above([x for dead, *_ in arms for x in dead], [x for _, alive, _ in arms for x in alive])


def _interval(arms: Sequence[Arm], probability: Callable[[Sequence[Arm]], float]) -> str:
    """Return a probability with a 95 % bootstrap over arms, also of one, which scipy refuses."""
    if not arms or math.isnan(probability(arms)):
        return "-"
    rng = np.random.default_rng(0)
    draws = [
        probability([arms[i] for i in rng.integers(0, len(arms), len(arms))])
        for _ in range(BOOTSTRAPS)
    ]
    low, high = np.nanquantile(draws, (0.025, 0.975))
    return f"{probability(arms):.2f} [{low:.2f}, {high:.2f}]"


def _foretold(p: float) -> Word:
    """Return the word for a probability that the drift tells which runs diverge."""
    if math.isnan(p):
        return Word.NOT_TESTABLE
    if p >= 0.95:
        return Word.AGREES
    return Word.CONTRADICTS if p <= 0.5 else Word.UNDECIDED
