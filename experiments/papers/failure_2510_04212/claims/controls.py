"""The controls that the paper does not have.

They are size against sign, other modes, other repairs, presets, the factorial, and the rest of dS.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.papers.failure_2510_04212.claims.judging import (
    explodes_word,
    repair,
    stable_word,
    verdict,
)
from roundscope.experiments.papers.failure_2510_04212.conditions.cases import Case
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import (
    FAILS,
    HALVES,
    ONCE,
    cell,
)
from roundscope.experiments.papers.failure_2510_04212.conditions.trials import Trial
from roundscope.experiments.papers.failure_2510_04212.drift import drift
from roundscope.experiments.papers.failure_2510_04212.results import Own, Results, middle
from roundscope.tools.results.run import Run

CONTROL, OURS = "control", "ours"
BOOTSTRAPS = 1000
BEYOND = {
    "centred": "delta = rowsum(P dP) / rowsum(P), rows of dS that sum to 0: stable",
    "scores": "scores, m and l in FP32, the rest of the case low: stable",
    "same scores": "the backward rounds its scores as the forward did: stable",
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


def controls(r: Results) -> list[Verdict]:
    """Return a verdict for every control that was run."""
    return [
        *_size(r),
        *_modes(r),
        *_beyond(r),
        *_presets(r),
        *_factorial(r),
        identity(r),
        within(r),
    ]


def _size(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on case A against nearest-even with one bit less, an error of the same RMS."""
    for case in r.scale.cases:
        if case.mode != "toward-zero":
            continue
        own = r.of(case.name, f"ties-to-even {case.bits - 1}")
        worse = r.of(case.name, f"stochastic {case.bits - 1}")
        claim = "it is the sign of O's error, not its size: nearest-even of the same RMS is stable"
        more = f"; stochastic with 1.4 times the RMS: {times(worse)}" if worse else ""
        word = stable_word(own) if r.fails(case.name) else Word.NOT_TESTABLE
        measured = (
            f"p = {case.bits - 1} nearest-even {times(own)}; p = {case.bits} toward zero"
            f" {times(r.of(case.name, FAILS))}{more}"
        )
        yield verdict(CONTROL, claim, case, word, measured)


def _modes(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on stochastic rounding of the O path, and on biased modes."""
    for case in r.scale.cases:
        if r.of(case.name, f"stochastic {case.bits}"):
            claim = "stochastic rounding of the O path alone: stable"
            yield repair(CONTROL, claim, case, r, f"stochastic {case.bits}")
        for mode in ("toward-zero", "ties-to-away"):
            own, base = r.of(case.name, f"{mode} {case.bits}"), r.of(case.name, FAILS)
            if own and case.mode == "ties-to-even":
                claim = f"{mode} on the O path diverges earlier than nearest-even"
                yield verdict(
                    CONTROL,
                    claim,
                    case,
                    _earlier(own, base),
                    f"{times(own)}; nearest-even {times(base)}",
                )


def _earlier(own: Own, base: Own) -> Word:
    first = [a.time < b.time for a, b in zip(own, base, strict=True)]
    return Word.AGREES if all(first) else Word.UNDECIDED if any(first) else Word.CONTRADICTS


def _beyond(r: Results) -> Iterator[Verdict]:
    for row, claim in BEYOND.items():
        for case in r.scale.cases:
            if r.of(case.name, row):
                yield repair(OURS, claim, case, r, row)


def _presets(r: Results) -> Iterator[Verdict]:
    for row, claim, word in (
        ("fa2-bf16", "production FlashAttention in BF16 is stable", stable_word),
        (
            ONCE,
            (
                "unfused BF16 attention diverges if its backward rounds its scores once, its"
                " forward twice"
            ),
            explodes_word,
        ),
    ):
        for case in r.scale.cases:
            if own := r.of(case.name, row):
                yield verdict(CONTROL, claim, case, word(own), times(own))


def _factorial(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on rounding before against after the normalization, over the other factors.

    Then yield what those factors do.
    """
    for case in r.scale.cases:
        if not r.of(case.name, cell("both", "FP32", "FP32", 1)):
            continue
        before, after, both = (pooled(r, case, half) for half in HALVES)
        as_often = diverged(after) * len(before) >= diverged(before) * len(after)
        clear = diverged(before) == len(before) and not diverged(after)
        word = Word.AGREES if clear else Word.CONTRADICTS if as_often else Word.UNDECIDED
        measured = f"before only {times(before)}; after only {times(after)}; both {times(both)}"
        claim = "rounding O before its normalization kills, rounding it after does not"
        yield verdict(CONTROL, claim, case, word, measured, "; ".join(_effects(r, case)))


def _effects(r: Results, case: Case) -> Iterator[str]:
    """Yield the share that diverged at both levels of every other factor."""
    for name, position, levels in (
        ("scores", 2, ("BF16", "FP32")),
        ("m and l", 3, ("BF16", "FP32")),
        ("tiles", 4, ("1", "4")),
    ):
        own = [pooled(r, case, level, position) for level in levels]
        yield f"{name} " + ", ".join(
            f"{level} {diverged(runs)} of {len(runs)}"
            for level, runs in zip(levels, own, strict=True)
        )


def pooled(r: Results, case: Case, level: str, position: int = 1) -> list[Run[Trial]]:
    """Return all runs of the factorial with one level of one factor.

    Positions are those in which `rows.cell` writes the factors.
    """
    names = [
        row
        for row in r.rows(case.name)
        if row.startswith("cell ") and row.split(" ")[position] == level
    ]
    return [run for row in names for run in r.of(case.name, row)]


def identity(r: Results) -> Verdict:
    """Return the verdict on the rest of dS against divergence, over all runs of all cases."""
    dead, alive = split(r)
    p = above([drift(x) for x in dead], [drift(x) for x in alive])
    word = _foretold(p)
    measured = (
        f"probability {p:.3f}; median drift of {len(dead)} runs that diverged"
        f" {middle([drift(x) for x in dead]):.2g}, of {len(alive)} that did not"
        f" {middle([drift(x) for x in alive]):.2g}"
    )
    claim = (
        "runs whose rows of dS do not sum to zero, in one direction, diverge, whichever event made"
        " it; others do not"
    )
    return Verdict(figure=OURS, claim=claim, case="all", sizes="", word=word, measured=measured)


def within(r: Results) -> Verdict:
    """Return the same between seeds of one arithmetic: pairs of runs that only differ in seed."""
    arms = [arm for arm in _arms(r) if arm[0] and arm[1]]
    pairs = sum(len(dead) * len(alive) for dead, alive in arms)
    inside = f"probability {_shown(arms, paired)} over {pairs} pairs in {len(arms)} arms"
    measured = f"{inside}; between all runs {_shown(_arms(r), pooled_pairs)}"
    word = _foretold(paired(arms) if arms else math.nan)
    claim = (
        "of two seeds of one arithmetic, the one whose rows of dS drift more is the one that"
        " diverges"
    )
    return Verdict(figure=OURS, claim=claim, case="all", sizes="", word=word, measured=measured)


def _foretold(p: float) -> Word:
    """Return the word for a probability that the drift tells which runs diverge."""
    if math.isnan(p):
        return Word.NOT_TESTABLE
    if p >= 0.95:
        return Word.AGREES
    return Word.CONTRADICTS if p <= 0.5 else Word.UNDECIDED


# the drifts of an arm's runs that diverged, and of those that did not
Drifts = tuple[list[float], list[float]]


def _arms(r: Results) -> list[Drifts]:
    """Return every arm once, by its runs."""
    arms: dict[tuple[Trial, ...], Drifts] = {}
    for own in r.by.values():
        runs = [run for run in own if math.isfinite(drift(run))]
        dead, alive = (
            [drift(x) for x in runs if (x.diverged is not None) is gone] for gone in (True, False)
        )
        arms[tuple(run.condition for run in runs)] = (dead, alive)
    return list(arms.values())


def paired(arms: Sequence[Drifts]) -> float:
    """Return the probability over the pairs inside arms."""
    weights = [len(dead) * len(alive) for dead, alive in arms]
    return sum(w * above(*arm) for w, arm in zip(weights, arms, strict=True)) / sum(weights)


def pooled_pairs(arms: Sequence[Drifts]) -> float:
    """Return the probability over all pairs of runs."""
    return above([x for dead, _ in arms for x in dead], [x for _, alive in arms for x in alive])


def _shown(arms: Sequence[Drifts], probability: Callable[[Sequence[Drifts]], float]) -> str:
    """Return a probability with its 95 % bootstrap interval over arms."""
    if not arms or math.isnan(probability(arms)):
        return "-"
    rng = np.random.default_rng(0)
    draws = [
        probability([arms[i] for i in rng.integers(0, len(arms), len(arms))])
        for _ in range(BOOTSTRAPS)
    ]
    low, high = np.nanquantile(draws, (0.025, 0.975))
    return f"{probability(arms):.2f} [{low:.2f}, {high:.2f}]"


def split(r: Results) -> tuple[list[Run[Trial]], list[Run[Trial]]]:
    """Return every run once: those that diverged, then those that did not.

    Only runs whose drift was measured count.
    """
    every = {
        run.condition: run for own in r.by.values() for run in own if math.isfinite(drift(run))
    }.values()
    return [x for x in every if x.diverged is not None], [x for x in every if x.diverged is None]


def above(dead: Sequence[float], alive: Sequence[float]) -> float:
    """Return the probability that one of the first is larger than one of the second.

    Ties count half: it is the area under the ROC curve.
    """
    if not dead or not alive:
        return math.nan
    x, y = np.asarray(dead)[:, None], np.asarray(alive)[None]
    return float(((x > y) + 0.5 * (x == y)).mean())
