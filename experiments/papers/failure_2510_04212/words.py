"""The answer in a sentence, and the captions of the pictures."""

from collections.abc import Sequence

from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.papers.failure_2510_04212.conditions.cases import OTHER_DELTA, PUBLISHED
from roundscope.experiments.papers.failure_2510_04212.conditions.rows import FAILS
from roundscope.experiments.papers.failure_2510_04212.results import Results
from roundscope.tools.report.wording import listed

QUESTION = "What kills low-precision attention in training, and what cures it?"
REPAIRS = {"7": "O in FP32", "5": "delta = rowsum(P dP)", "10 beta 2": "the stabilized softmax"}
CENTRED = (
    "delta = rowsum(P dP) / rowsum(P), with which rows of dS sum to zero whatever was rounded,"
)
LEFT_OUT = (
    "Not shown: a failure of the published algorithm at the paper's own size (12 layers, width 768,"
    " context 1024, OpenWebText, thousands of steps). The cases fail because O, or everything, has"
    " fewer bits, because delta is taken elsewhere or because the rate is high; only C and D are at"
    " full BF16. The released code computes something else where it trains: `reproduce released`."
    " Row 8 picks heads over all layers, the paper in one. Rows 6 and 9 have AO in FP32 too; with"
    " one tile it is 0. Sums are native: numbers repeat on one kind of device only. 95 % intervals"
    " are Student's, over seeds, and not widened for the number of rows."
)
PARTIAL = (
    "Of results that are not complete, a case is shown once its rows 0 and 0' are there, and a row "
    "once all of its seeds are; layers, heads and the factorial each once all of their rows are."
)


def answer(r: Results) -> str:
    """Return the answer in one sentence."""
    failing = [case.name for case in r.scale.cases if r.fails(case.name)]
    if not failing:
        return (
            "No case diverged in every run while FP32 did not: the question is not answered at this"
            " scale."
        )
    words = {case.name: case.words for case in r.scale.cases}
    own = r.of(PUBLISHED, FAILS)
    killed = "; ".join(f"{name}: {words[name]}" for name in failing)
    published = f", qiu-yao as it is in {diverged(own)} of {len(own)}" if own else ""
    parts = [
        (
            f"training diverged in every run of {_plural('case', failing)} {listed(failing)}"
            f" ({killed}){published}, in FP32 never"
        ),
        *(_repair(r, _fair(r, failing, row), row, name) for row, name in REPAIRS.items()),
        _repair(r, failing, "centred", CENTRED),
    ]
    parts += _elsewhere(r, failing)
    left = [name for name in failing if diverged(r.of(name, "centred"))]
    also = f", and in {listed(left)} something else" if left else ""
    return f"Rows of dS that do not sum to zero{also}: {'; '.join(text for text in parts if text)}."


def _elsewhere(r: Results, failing: Sequence[str]) -> list[str]:
    """Cases that did not fail in every run and do so more often with the centred delta."""
    counts = {
        case.name: tuple(diverged(r.of(case.name, row)) for row in (FAILS, "centred"))
        for case in r.scale.cases
        if case.name not in failing
    }
    worse = [
        f"{name} ({after} of {len(r.of(name, 'centred'))} diverged, {before} without it)"
        for name, (before, after) in counts.items()
        if after > before
    ]
    return [f"it does not help {listed(worse)}, which not every run diverged in"] if worse else []


def _fair(r: Results, failing: Sequence[str], row: str) -> list[str]:
    """Return the cases in which a repair could work.

    P_DP is left out where it is the failure itself, the stabilizer where ties cannot be its cause.
    """
    modes = {case.name: case.mode for case in r.scale.cases}
    left_out = {
        "5": [OTHER_DELTA],
        "10 beta 2": [name for name in failing if modes[name] != "ties-to-even"],
    }
    return [name for name in failing if name not in left_out.get(row, [])]


def _repair(r: Results, failing: Sequence[str], row: str, name: str) -> str:
    tried = [case for case in failing if r.of(case, row)]
    cured = [case for case in tried if not diverged(r.of(case, row))]
    not_cured = [
        f"{case} ({diverged(r.of(case, row))} of {len(r.of(case, row))} diverged)"
        for case in tried
        if case not in cured
    ]
    if not tried:
        return ""
    parts = [f"cures {listed(cured)}"] if cured else []
    parts += [f"does not cure {listed(not_cured)}"] if not_cured else []
    return f"{name} {' and '.join(parts)}"


def _plural(word: str, of: Sequence[str]) -> str:
    return word if len(of) == 1 else f"{word}s"
