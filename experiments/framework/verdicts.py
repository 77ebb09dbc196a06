"""`Verdict`, a claim of a paper beside our number, and the rule that turns intervals into words."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from roundscope.experiments.framework.estimates import Estimate

Range = tuple[float, float]

LARGER: Range = (1.05, math.inf)  # for factors: larger by 5 % or more
SMALLER: Range = (0.0, 0.95)
SAME: Range = (0.95, 1.05)
GROWS: Range = (0.05, math.inf)  # for exponents: growth by 3.5 % or more where x doubles
FALLS: Range = (-math.inf, -0.05)
TENFOLD: Range = (5.0, 20.0)  # "about 10 times" or "an order of magnitude": within a factor of 2


class Word(StrEnum):
    """What our measurement says of a claim."""

    AGREES = "agrees"
    CONTRADICTS = "contradicts"
    # it holds under some conditions that the paper does not state, and fails under others
    DEPENDS = "depends"
    UNDECIDED = "undecided"  # the interval reaches across the border of the claim, or there is none
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim under one condition.

    figure    the paper's figure, or where else the claim stands
    claim     the claim, in the paper's sense
    case      the emulation and the input
    sizes     what all cells of the table share
    word      what our measurement says
    measured  our number with its interval, in words
    estimate  the same as numbers; None where there is none
    note      for DEPENDS, what it depends on; else what to keep in mind
    queries   SQL over the results file that gives the numbers, in the order of `measured`
    """

    figure: str
    claim: str
    case: str
    sizes: str
    word: Word
    measured: str
    estimate: Estimate | None = None
    note: str = ""
    queries: tuple[str, ...] = ()


def lines(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, str, Verdict]]:
    """Yield (figure, claim with its sizes, verdict); what repeats the line above is left out."""
    before = ("", "")
    for v in verdicts:
        now = (v.figure, f"{v.claim} ({v.sizes})" if v.sizes else v.claim)
        yield *(("", "") if now == before else now), v
        before = now


def judge(e: Estimate, holds: Range) -> Word:
    """Return whether an interval is in the range (AGREES), outside it, or across its border."""
    if e.inside(*holds):
        return Word.AGREES
    return Word.CONTRADICTS if e.outside(*holds) else Word.UNDECIDED


def verdict_on(
    figure: str,
    claim: str,
    case: str,
    holds: Word | Range | bool,
    measured: str,
    estimate: Estimate | None = None,
    note: str = "",
    *,
    sizes: str = "",
    queries: tuple[str, ...] = (),
) -> Verdict:
    """Return a verdict; `holds`: its word, whether it holds, or the range where it does."""
    word = holds if isinstance(holds, Word) else Word.AGREES if holds else Word.CONTRADICTS
    if isinstance(holds, tuple) and estimate is not None:
        word = judge(estimate, holds)
    return Verdict(
        figure=figure,
        claim=claim,
        case=case,
        sizes=sizes,
        word=word,
        measured=measured,
        estimate=estimate,
        note=note,
        queries=queries,
    )


def not_here(claims: Iterable[tuple[str, str, str]]) -> Iterator[Verdict]:
    """Yield a verdict that tests nothing for each (figure, claim, why it cannot be tested here)."""
    for figure, claim, why in claims:
        yield verdict_on(figure, claim, "-", Word.NOT_TESTABLE, why)


def together(words: Sequence[Word]) -> Word:
    """Return what several verdicts say: DEPENDS where some agree and others contradict."""
    if Word.AGREES in words and Word.CONTRADICTS in words:
        return Word.DEPENDS
    return words[0] if len(set(words)) == 1 else Word.UNDECIDED


def number(x: float) -> str:
    """Return a number with three digits from 1 to 1000, else with two."""
    return "-" if math.isnan(x) else f"{x:.3g}" if 1 <= abs(x) < 1000 else f"{x:.2g}"


def interval(e: Estimate, unit: str = "") -> str:
    """Return "mean [low, high]", or the mean alone where there is no interval."""
    ends = "" if math.isnan(e.low) else f" [{number(e.low)}, {number(e.high)}]"
    return f"{number(e.mean)}{unit}{ends}"
