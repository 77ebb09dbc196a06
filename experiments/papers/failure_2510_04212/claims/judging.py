"""The rules by which counts of diverged runs become words.

They say what is stable, what explodes and what cures.
"""

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.verdicts import Verdict, Word, interval
from roundscope.experiments.papers.failure_2510_04212.conditions.cases import Case
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import FAILS
from roundscope.experiments.papers.failure_2510_04212.results import Own, Results


def repair(figure: str, claim: str, case: Case, r: Results, row: str) -> Verdict:
    """Return the verdict on a row that should be stable, in a case that fails."""
    own = r.of(case.name, row)
    if not own or not r.fails(case.name):
        return untestable(figure, claim, case, r)
    excess = r.excess(case.name, own)
    left = f"; loss above FP32 {interval(excess, ' nats')}" if excess.seeds else ""
    return verdict(figure, claim, case, stable_word(own), times(own) + left)


def stable_word(own: Own) -> Word:
    """Return the word for runs that should not diverge."""
    if not own:
        return Word.NOT_TESTABLE
    return (
        Word.AGREES
        if not diverged(own)
        else Word.CONTRADICTS
        if 2 * diverged(own) > len(own)
        else Word.UNDECIDED
    )


def explodes_word(own: Own) -> Word:
    """Return the word for runs that should diverge."""
    if not own:
        return Word.NOT_TESTABLE
    return (
        Word.AGREES
        if diverged(own) == len(own)
        else Word.CONTRADICTS
        if not diverged(own)
        else Word.UNDECIDED
    )


def untestable(figure: str, claim: str, case: Case, r: Results) -> Verdict:
    """Return the verdict where the case does not fail, or the row was not run."""
    return verdict(
        figure, claim, case, Word.NOT_TESTABLE, f"the case itself: {times(r.of(case.name, FAILS))}"
    )


def verdict(
    figure: str, claim: str, case: Case, word: Word, measured: str, note: str = ""
) -> Verdict:
    """Return the verdict on one row in one case."""
    return Verdict(
        figure=figure,
        claim=claim,
        case=case.name,
        sizes="",
        word=word,
        measured=measured,
        note=note,
    )
