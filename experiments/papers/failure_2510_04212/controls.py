"""The controls that the paper does not have.

They are size against sign, other modes, other repairs, presets, the factorial, and the rest of dS.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.stats import rankdata

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.papers.failure_2510_04212.claims import (
    explodes_word,
    repair,
    stable_word,
    verdict,
)
from roundscope.experiments.papers.failure_2510_04212.conditions import (
    FAILS,
    HALVES,
    ONCE,
    Case,
    cell,
)
from roundscope.experiments.papers.failure_2510_04212.trials import (
    Results,
    Trial,
    drift,
    middle,
    split,
)
from roundscope.tools.results.run import Run

CONTROL, OURS = "control", "ours"
BOOTSTRAPS = 1000
BEYOND = {
    "centred": "delta = rowsum(P dP) / rowsum(P), rows of dS that sum to 0: stable",
    "scores": "scores, m and l in FP32, the rest of the case low: stable",
    "same scores": "the backward rounds its scores as the forward did: stable",
}
PRESETS = {
    "fa2-bf16": ("production FlashAttention in BF16 is stable", stable_word),
    ONCE: (
        "unfused BF16 attention diverges if its backward rounds its scores once, its forward twice",
        explodes_word,
    ),
}
FACTORS = {  # name -> (position in the names of `conditions.cell`, levels)
    "scores": (2, ("BF16", "FP32")),
    "m and l": (3, ("BF16", "FP32")),
    "tiles": (4, ("1", "4")),
}
RULES = (
    "Controls. Size: the same events, errors of the same RMS without bias; agrees if none of these"
    " runs diverged. 'Earlier': agrees if every seed diverged earlier than nearest-even did or"
    " where it did not, contradicts if none did. The factorial: agrees if every run with O rounded"
    " before its normalization only diverged and none with it rounded after only, contradicts if"
    " the latter diverged at least as often. The rest of dS: all runs of all cases; the number is"
    " the probability that a run that diverged had a larger drift, after the warm-up, than one that"
    " did not (0.5: no relation): agrees from 0.95, contradicts up to 0.5. Between seeds of one"
    " row: the same over pairs of runs of one row; intervals are bootstraps over rows."
)


def judged(r: Results) -> Iterator[Verdict]:
    """Yield a verdict for every control that was run."""
    for case in r.scale.cases:
        if case.mode == "toward-zero":
            yield _size(r, case)
    for case in r.scale.cases:
        yield from _modes(r, case)
    for row, claim in BEYOND.items():
        for case in r.scale.cases:
            if r.of(case.name, row):
                yield repair(OURS, claim, case, r, row)
    for row, (claim, word_of) in PRESETS.items():
        for case in r.scale.cases:
            if own := r.of(case.name, row):
                yield verdict(CONTROL, claim, case.name, word_of(own), times(own))
    for case in r.scale.cases:
        if r.of(case.name, cell("both", "FP32", "FP32", 1)):
            yield _factorial(r, case)
    yield identity(r)
    yield within(r)


def _size(r: Results, case: Case) -> Verdict:
    """Return the verdict on case A against nearest-even with one bit less, of the same RMS."""
    own = r.of(case.name, f"ties-to-even {case.bits - 1}")
    worse = r.of(case.name, f"stochastic {case.bits - 1}")
    claim = "it is the sign of O's error, not its size: nearest-even of the same RMS is stable"
    more = f"; stochastic with 1.4 times the RMS: {times(worse)}" if worse else ""
    word = stable_word(own) if r.fails(case.name) else Word.NOT_TESTABLE
    measured = (
        f"p = {case.bits - 1} nearest-even {times(own)}; p = {case.bits} toward zero"
        f" {times(r.of(case.name, FAILS))}{more}"
    )
    return verdict(CONTROL, claim, case.name, word, measured)


def _modes(r: Results, case: Case) -> Iterator[Verdict]:
    """Yield verdicts on stochastic rounding of the O path, and on biased modes."""
    if r.of(case.name, f"stochastic {case.bits}"):
        claim = "stochastic rounding of the O path alone: stable"
        yield repair(CONTROL, claim, case, r, f"stochastic {case.bits}")
    for mode in ("toward-zero", "ties-to-away"):
        own, base = r.of(case.name, f"{mode} {case.bits}"), r.of(case.name, FAILS)
        if own and case.mode == "ties-to-even":
            first = [a.time < b.time for a, b in zip(own, base, strict=True)]
            word = Word.UNDECIDED if any(first) else Word.CONTRADICTS
            claim = f"{mode} on the O path diverges earlier than nearest-even"
            measured = f"{times(own)}; nearest-even {times(base)}"
            yield verdict(CONTROL, claim, case.name, Word.AGREES if all(first) else word, measured)


def _factorial(r: Results, case: Case) -> Verdict:
    """Return the verdict on rounding before against after the normalization.

    It is over the other factors; the note has what those do.
    """

    def pooled(level: str, position: int = 1) -> list[Run[Trial]]:
        cells = [row for row in r.rows(case.name) if row.startswith("cell ")]
        own = [row for row in cells if row.split(" ")[position] == level]
        return [run for row in own for run in r.of(case.name, row)]

    before, after, both = map(pooled, HALVES)
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
    return verdict(CONTROL, claim, case.name, word, measured, "; ".join(effects))


def identity(r: Results) -> Verdict:
    """Return the verdict on the rest of dS against divergence, over all runs of all cases."""
    dead, alive = ([drift(run) for run in runs] for runs in split(r))
    p = above(dead, alive)
    measured = (
        f"probability {p:.3f}; median drift of {len(dead)} runs that diverged"
        f" {middle(dead):.2g}, of {len(alive)} that did not {middle(alive):.2g}"
    )
    claim = (
        "runs whose rows of dS do not sum to zero, in one direction, diverge, whichever event made"
        " it; others do not"
    )
    return verdict(OURS, claim, "all", _foretold(p), measured)


# the drifts of a row's runs that diverged, of those that did not, and `above` of these
Arm = tuple[list[float], list[float], float]


def within(r: Results) -> Verdict:
    """Return the same between seeds of one arithmetic: pairs of runs that only differ in seed."""
    by_runs: dict[tuple[Trial, ...], Arm] = {}  # every arithmetic once
    for own in r.by.values():
        runs = [run for run in own if math.isfinite(drift(run))]
        dead = [drift(run) for run in runs if run.diverged is not None]
        alive = [drift(run) for run in runs if run.diverged is None]
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
    word = _foretold(paired(mixed) if mixed else math.nan)
    return verdict(OURS, claim, "all", word, measured)


def paired(arms: Sequence[Arm]) -> float:
    """Return the probability over the pairs inside arms."""
    weights = [len(dead) * len(alive) for dead, alive, _ in arms]
    return sum(w * p for w, (_, _, p) in zip(weights, arms, strict=True)) / sum(weights)


def pooled(arms: Sequence[Arm]) -> float:
    """Return the probability over all pairs of runs."""
    return above([x for dead, *_ in arms for x in dead], [x for _, alive, _ in arms for x in alive])


def _interval(arms: Sequence[Arm], probability: Callable[[Sequence[Arm]], float]) -> str:
    """Return a probability with its 95 % bootstrap interval over arms.

    It is not scipy.stats.bootstrap, which takes no single arm, and no draw without a probability.
    """
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


def above(dead: Sequence[float], alive: Sequence[float]) -> float:
    """Return the probability that one of the first is larger than one of the second.

    Ties count half: it is the area under the ROC curve, or the Mann-Whitney U over the number of
    pairs; `scipy.stats.mannwhitneyu` would work out a p-value too, in 8 times the time.
    """
    n, pairs = len(dead), len(dead) * len(alive)
    if not pairs:
        return math.nan
    ranks = rankdata([*dead, *alive])[:n]
    return float((ranks.sum() - n * (n + 1) / 2) / pairs)
