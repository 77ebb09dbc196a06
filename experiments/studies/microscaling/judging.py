"""From runs to words: who diverged earlier on the same rows, by exact tests of signs; and the rates at which settings fail."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import beta, binom

from roundscope.experiments.studies.framework.estimates import Estimate, Values, ratio
from roundscope.experiments.studies.framework.verdicts import Word
from roundscope.experiments.train.student.results import Result

LEVEL = 0.05  # of one-sided tests
RULES = (
    "Two arms are compared seed by seed, on the same rows from the same weights: which diverged earlier (never is later than all steps)? "
    "A claim agrees if the probability of so many wins, were a win as likely as a loss, is at most 0.05, one-sided; contradicts if that "
    "of the losses is; else it is undecided, with too few seeds or because nothing is there. Shares have 95 % Clopper-Pearson intervals. A "
    "setting's limit is the lowest of its rates at which a seed diverged, and counts as moved from 5 % on; ratios of limits pair seeds, "
    "and seeds that no rate felled, or all did, say nothing. Intervals are not widened for the number of claims."
)


@dataclass(frozen=True, slots=True)
class Signs:
    """Seeds in which the first arm diverged earlier, in which later; equal ones, or both never, are in neither."""

    earlier: int
    later: int

    @property
    def word(self) -> Word:
        """Of the claim that the first arm diverges earlier."""
        total = self.earlier + self.later
        if total and at_least(self.earlier, total, 0.5) <= LEVEL:
            return Word.AGREES
        return Word.CONTRADICTS if total and at_least(self.later, total, 0.5) <= LEVEL else Word.UNDECIDED


def at_least(wins: int, of: int, chance: float) -> float:
    """The probability of `wins` or more in `of` trials."""
    return float(binom.sf(wins - 1, of, chance))


def when(r: Result) -> float:
    """The step of divergence, infinite without."""
    return math.inf if r.diverged is None else float(r.diverged)


def signs(first: Iterable[Result], second: Iterable[Result]) -> Signs:
    """Of two arms, paired by seed and rate."""
    other = {(r.arm.seed, r.arm.lr): when(r) for r in second}
    pairs = [(when(r), other[r.arm.seed, r.arm.lr]) for r in first if (r.arm.seed, r.arm.lr) in other]
    return Signs(sum(a < b for a, b in pairs), sum(a > b for a, b in pairs))


def diverged(own: Sequence[Result]) -> int:
    """How many did."""
    return sum(r.diverged is not None for r in own)


def share(k: int, n: int) -> tuple[float, float]:
    """The 95 % Clopper-Pearson interval of k of n."""
    low = 0.0 if k == 0 else float(beta.ppf(0.025, k, n - k + 1))
    return low, 1.0 if k == n else float(beta.ppf(0.975, k + 1, n - k))


def counted(own: Sequence[Result]) -> str:
    """k of n with the interval of the share, and the median step and range of those that diverged."""
    steps = sorted(r.diverged for r in own if r.diverged is not None)
    text = f"{len(steps)} of {len(own)}"
    if own:
        text += " [{:.0%}, {:.0%}]".format(*share(len(steps), len(own)))
    return f"{text}, step {steps[len(steps) // 2]} [{steps[0]}, {steps[-1]}]" if steps else text


def limits(own: Sequence[Result]) -> Values:
    """By seed: the lowest rate at which it diverged. Left out: seeds that no rate felled, or the lowest did."""
    lowest, found = min((r.arm.lr for r in own), default=0.0), {}
    for seed in sorted({r.arm.seed for r in own}):
        rates = [r.arm.lr for r in own if r.arm.seed == seed and r.diverged is not None]
        if rates and min(rates) > lowest:
            found[seed] = min(rates)
    return found


def limit_ratio(over: Sequence[Result], under: Sequence[Result]) -> Estimate:
    """The ratio of two limits, geometric mean over seeds."""
    return ratio(limits(over), limits(under))


def shown(limit: Mapping[int, float]) -> str:
    """The median of seeds' limits and their range."""
    rates = sorted(limit.values())
    return f"{rates[len(rates) // 2]:g} [{rates[0]:g}, {rates[-1]:g}]" if rates else "none inside the rates"
