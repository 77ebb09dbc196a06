"""Verdicts on what the mechanism rests on: likeness, rank, sign, and the count of maxima."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from roundscope.attention.models.alarm import LOOKS, Shares
from roundscope.attention.models.selection import Layer
from roundscope.experiments.framework import warning
from roundscope.experiments.framework.counts import above, counted, diverged, share
from roundscope.experiments.framework.estimates import Estimate, mean, ratio
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SMALLER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
    not_here,
    verdict_on,
)
from roundscope.experiments.papers.mechanism_2510_04212.conditions import (
    AS_IT_IS,
    END,
    GATED,
    LLAMA,
    MOVED,
    NORM,
    OPTIMIZER,
    PLAIN,
    VARIANTS,
    ZERO,
    Condition,
    Results,
    Runs,
)
from roundscope.tools.results.run import Run

ALIKE: Range = (0.5, math.inf)
FLIPS = 1000
RULES = (
    "Of every run the median over looks (every 25 steps, four sequences) after the warm-up and"
    " before it diverged, a mean over layers and heads; intervals are Student's, 95 %."
    " Alike: a mean cosine over pairs of tokens, or from one look to the next, above 0.5. Low rank:"
    " the largest singular value has more than half of |R|^2. Permuted: the same atoms, each with"
    " the error of another token of its batch. One sign: |sum of the errors| over the sum of their"
    " sizes, over looks, is larger by 5 % or more than with random signs. Broken: the ratio of the"
    " atoms' mean cosines, paired by seeds, is below 0.95.",
    "Warnings are judged as those of `reproduce alarm`: the runs of GPT-2's layers choose the"
    " largest threshold that warned every run before its loss moved, or else the smallest; the"
    " other runs test it. The probability is that of two runs of one kind of layers, one that"
    " diverged and one that did not, the first had the larger value: the largest before its loss"
    " moved, from the third look after the warm-up on, against the largest at any time. Runs whose"
    " loss moved before that say nothing. Its interval is a bootstrap over runs.",
)


SIZE = "not run for its size"
BEYOND = (  # figure, claim, why it is not tested
    (
        "2",
        "GPT-2 small explodes after some 6,600 steps on OpenWebText",
        f"{SIZE}: 12 layers, width 768, context 1,024, 524,288 tokens a step",
    ),
    (
        "7",
        "stabilized, GPT-2 small and medium train for 600,000 and 100,000 steps, with Muon too",
        SIZE,
    ),
    (
        "D",
        "the atoms' columns have a cosine of 0.999994 in layer 1, head 13 of Llama-3.1-8B",
        f"{SIZE}: small models with Llama's layers stand above",
    ),
    ("10, 12", "users' curves and tokens' differences show this failure", "no state is released"),
    ("text", "it fails alike on A100, RTX 4090 and Ascend 910B", "these devices were not there"),
)


def judged(r: Results) -> list[Verdict]:
    """Return all verdicts, in the paper's order."""
    own = [*alike(r), *rank(r), *signs(r), *broken(r), *fails(r), *warned(r)]
    return [*own, *not_here(BEYOND)]


def _cases(r: Results, variants: Sequence[str] = tuple(VARIANTS)) -> Iterator[tuple[str, Runs]]:
    """Yield the name of a case and its runs: as it is, and O toward zero."""
    for variant in variants:
        for arithmetic in (AS_IT_IS, ZERO):
            if runs := r.of(variant, arithmetic):
                yield f"{variant}, {arithmetic}", runs


def alike(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on claim 2: rows alike over tokens and over steps."""
    columns = {
        "x": "rows of X are alike over tokens",
        "pk": "rows of P K are alike over tokens",
        "turn_x": "the mean direction of X is alike over steps",
        "turn_pk": "the mean direction of P K is alike over steps",
    }
    for name, claim in columns.items():
        for case, runs in _cases(r, (PLAIN,)):
            yield _mean(r, "claim 2", claim, case, runs, name)
    for case, runs in _cases(r):
        also = f"; X permuted against P K {interval(r.estimate(runs, 'unpaired'))}"
        figure = "D" if case.startswith(LLAMA) else "claim 2"
        yield _mean(r, figure, "atoms are alike over tokens", case, runs, "atom", also)


def rank(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on R: its rank, whether the errors' places make it, whether it turns."""
    for case, runs in _cases(r):
        also = (
            f"; errors permuted {interval(r.estimate(runs, 'shuffled'))}; the gradient of W_Q"
            f" {interval(r.estimate(runs, 'gradient'))}"
        )
        yield _mean(r, "claim 2", "R has low rank", case, runs, "first", also)
    for case, runs in _cases(r, (PLAIN,)):
        e = ratio(r.values(runs, "first"), r.values(runs, "shuffled"))
        claim = "ours: that rank is the errors' doing, not the atoms' alone"
        yield verdict_on(
            "claim 2", claim, case, LARGER, f"{interval(e, 'x')} the share with errors permuted", e
        )
    for case, runs in _cases(r, (PLAIN,)):
        yield _mean(r, "claim 2", "R points one way over steps", case, runs, "turn")
    for case, runs in _cases(r, (PLAIN,)):
        e = r.estimate(runs, "random")
        claim = "ours: the errors add up over tokens more than with random signs"
        yield verdict_on("claim 2", claim, case, LARGER, f"|R| {interval(e, 'x')} as large", e)


def _mean(
    r: Results, figure: str, claim: str, case: str, runs: Runs, name: str, also: str = ""
) -> Verdict:
    e = r.estimate(runs, name)
    measured = f"{interval(e)}{also}; {len(runs)} runs"
    return verdict_on(figure, claim, case, ALIKE, measured, e)


def one_sign(errors: np.ndarray) -> float:
    """Return |sum| / sum | | over looks of errors (K, heads), mean over heads; NaN without any."""
    size = np.abs(errors).sum(0)
    if not (size > 0).any():
        return math.nan
    return float((np.abs(errors.sum(0))[size > 0] / size[size > 0]).mean())


def by_chance(errors: np.ndarray) -> float:
    """Return the mean of `one_sign` over random signs of the looks."""
    rng = np.random.default_rng(0)
    flips = rng.choice((-1.0, 1.0), (FLIPS, *errors.shape))
    return float(np.mean([one_sign(flip * errors) for flip in flips]))


def signs(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on figure 5a: the errors of delta have one sign over steps, which is plus."""
    for case, runs in _cases(r, (PLAIN,)):
        own = {run.seed: one_sign(r.errors(run)) for run in runs}
        e = mean({run.seed: own[run.seed] / by_chance(r.errors(run)) for run in runs})
        measured = f"|sum| / sum | | {interval(mean(own))}, {interval(e, 'x')} that of random signs"
        yield verdict_on("5a", "delta's error has one sign over steps", case, LARGER, measured, e)
    for case, runs in _cases(r, (PLAIN,)):
        totals = [r.errors(run).sum(0) for run in runs]
        plus = sum(bool(total[np.abs(total).argmax()] > 0) for total in totals)
        claim = "in the head where it adds up most, that sign is plus"
        yield _share("5a", claim, case, plus, len(totals), (0.5, 1.0))


def _share(figure: str, claim: str, case: str, k: int, n: int, holds: Range) -> Verdict:
    low, high = share(k, n) if n else (0.0, 1.0)
    e = Estimate(mean=k / n if n else math.nan, low=low, high=high, seeds=n)
    word = judge(e, holds) if n else Word.NOT_TESTABLE
    return verdict_on(figure, claim, case, word, f"{k} of {n} [{low:.0%}, {high:.0%}]")


def broken(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on what should break the likeness: QK-norm and gated attention."""
    for variant in (NORM, GATED):
        for arithmetic in (AS_IT_IS, ZERO):
            own, plain = r.of(variant, arithmetic), r.of(PLAIN, arithmetic)
            if not own or not plain:
                continue
            e = ratio(r.values(own, "atom"), r.values(plain, "atom"))
            measured = f"the atoms' cosine is {interval(e, 'x')} that of {PLAIN}"
            claim = f"{variant} breaks the likeness of the atoms"
            yield verdict_on("discussion", claim, arithmetic, SMALLER, measured, e)
        if (own := r.of(variant, ZERO)) and (plain := r.of(PLAIN, ZERO)):
            claim, fewer = f"{variant} prevents the failure", diverged(own) < diverged(plain)
            word = Word.AGREES if not diverged(own) and fewer else Word.UNDECIDED
            word = Word.CONTRADICTS if 2 * diverged(own) > len(own) else word
            measured = f"{counted(own)}; {PLAIN} {counted(plain)}"
            yield verdict_on("discussion", claim, ZERO, word, measured)


def fails(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on version 4: FlashAttention fails under AdamW and Muon, and in Llama."""
    for variant in (PLAIN, OPTIMIZER, LLAMA):
        for arithmetic in (AS_IT_IS, ZERO):
            if own := r.of(variant, arithmetic):
                lost = diverged(own)
                word = Word.AGREES if lost == len(own) else Word.UNDECIDED
                if arithmetic == ZERO and not lost:
                    word = Word.CONTRADICTS
                note = "" if lost else "the paper's runs have 100,000 steps and more"
                claim = "BF16 FlashAttention explodes with AdamW and with Muon"
                if variant == LLAMA:
                    claim = "Llama's layers do not definitely fail in BF16"
                    word = Word.AGREES if lost < len(own) else Word.CONTRADICTS
                    note = ""
                figure = "D" if variant == LLAMA else "7"
                case = f"{variant}, {arithmetic}"
                yield verdict_on(figure, claim, case, word, counted(own), note=note)


MODEL = Layer(name="model", number=0)
FLOOR = 1e-3  # added to shares of rows before they are divided
Series = Callable[[Results, Run[Condition], str], np.ndarray]


def level(r: Results, run: Run[Condition], until: str) -> np.ndarray:
    """Return the share of rows with several maxima at each look."""
    return r.column(run, "tied", until)


def rise(r: Results, run: Run[Condition], until: str) -> np.ndarray:
    """Return that share over its lowest so far."""
    tied = r.column(run, "tied", until) + FLOOR
    return tied / np.minimum.accumulate(tied) if tied.size else tied


def drift(r: Results, run: Run[Condition], until: str) -> np.ndarray:
    """Return the share of the drift over looks so far, which `reproduce alarm` judges."""
    watch, found = Shares(threshold=None), []
    columns = (r.column(run, name, until) for name in ("made", "whole"))
    for made, whole in zip(*columns, strict=True):
        watch.update(0, {MODEL: [made]}, {MODEL: [whole]})
        found.append(watch.share())
    return np.array(found)


WARNINGS: dict[str, tuple[Series, tuple[float, ...]]] = {
    "the share of rows with several maxima": (level, (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)),
    "that share over its lowest so far": (rise, (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)),
    "the drift of the rows of dS": (drift, (0.02, 0.05, 0.1, 0.2, 0.5)),
}


def highest(r: Results, run: Run[Condition], of: Series) -> float:
    """Return the largest value before a run's loss moved, or of all; NaN where there is none."""
    own = of(r, run, MOVED)[LOOKS - 1 :]
    own = own[np.isfinite(own)]
    return float(own.max()) if own.size else math.nan


def step_of(r: Results, run: Run[Condition], of: Series, threshold: float) -> int | None:
    """Return the step of the first look, from the third on, above a threshold; None without."""
    looks, own = r.looks(run, END), of(r, run, END)
    above_it = [k for k in range(LOOKS - 1, len(own)) if own[k] > threshold]
    return int(looks[above_it[0], 0]) if above_it else None


def chosen(r: Results, of: Series, grid: Sequence[float]) -> float:
    """Return the threshold that the runs of GPT-2's layers choose."""
    own = [run for (variant, _), runs in r.by.items() if variant == PLAIN for run in runs]
    lost = [run for run in own if run.diverged is not None]
    right = [
        x
        for x in grid
        if lost and all(warning.is_early(run, step_of(r, run, of, x)) for run in lost)
    ]
    return max(right, default=min(grid))


def warned(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the count of several maxima as a warning, beside the drift's."""
    test = [run for (variant, _), runs in r.by.items() if variant != PLAIN for run in runs]
    lost, quiet = ([run for run in test if (run.diverged is not None) == x] for x in (True, False))
    for name, (of, grid) in WARNINGS.items():
        at = chosen(r, of, grid)
        steps = {id(run): step_of(r, run, of, at) for run in test}
        figure, case = (
            ("E.1", f"{name}, above {at:g}")
            if of is not drift
            else ("ours", f"{name}, above {at:g}")
        )
        early = sum(warning.is_early(run, steps[id(run)]) for run in lost)
        false = sum(steps[id(run)] is not None for run in quiet)
        claim = "it warns more than half of the runs that diverge before their loss moves"
        yield _share(figure, claim, case, early, len(lost), (0.5, 1.0))
        claim = "at most a quarter of the runs that do not diverge have a warning"
        yield _share(figure, claim, case, false, len(quiet), (0.0, 0.25))
        yield _told(r, figure, name, of)


def _told(r: Results, figure: str, name: str, of: Series) -> Verdict:
    """Return the verdict on how well a value tells runs that diverge from those that do not."""
    by: list[tuple[list[float], list[float]]] = []
    for variant in VARIANTS:
        own = [run for (kind, _), runs in r.by.items() if kind == variant for run in runs]
        found = [(run.diverged is not None, highest(r, run, of)) for run in own]
        lost, quiet = ([x for gone, x in found if gone is g and x == x] for g in (True, False))
        if lost and quiet:
            by.append((lost, quiet))
    claim = "it is larger before a failure than where there is none"
    if not by:
        return verdict_on(figure, claim, name, Word.NOT_TESTABLE, "no run, or every run, diverged")
    rng = np.random.default_rng(0)
    draws = [
        _probability([tuple(rng.choice(x, len(x)).tolist() for x in pair) for pair in by])
        for _ in range(FLIPS)
    ]
    low, high = np.quantile(draws, (0.025, 0.975))
    lost_runs, quiet_runs = (sum(len(pair[n]) for pair in by) for n in (0, 1))
    e = Estimate(mean=_probability(by), low=float(low), high=float(high), seeds=lost_runs)
    measured = (
        f"probability {interval(e)}; {lost_runs} runs that diverged, {quiet_runs} others, in"
        f" {len(by)} kinds of layers"
    )
    return verdict_on(figure, claim, name, (0.5, 1.0), measured, e)


def _probability(by: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return how often the first of a pair of one kind is larger, over all such pairs."""
    weights = [len(lost) * len(quiet) for lost, quiet in by]
    return sum(w * above(*pair) for w, pair in zip(weights, by, strict=True)) / sum(weights)


def answer(r: Results) -> str:
    """Return the answer: how alike, of which rank, and what several maxima tell."""
    cases = list(_cases(r, (PLAIN,)))
    alike = " and ".join(f"{interval(r.estimate(runs, 'atom'))} ({case})" for case, runs in cases)
    rank = "; ".join(
        f"{interval(r.estimate(runs, 'first'))} ({case}), with errors permuted"
        f" {interval(r.estimate(runs, 'shuffled'))}"
        for case, runs in cases
    )
    names = [f"{name}: {_told(r, '', name, of).measured}" for name, (of, _) in WARNINGS.items()]
    return (
        f"The mean cosine of the updates of two tokens is {alike}. The largest singular value has"
        f" this share of |R|^2: {rank}. A run that diverges has the larger value than one that does"
        f" not, with {'; '.join(names)}."
    )
