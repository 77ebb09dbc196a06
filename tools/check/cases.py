"""The comparison with the plan, and the search for a plan, as cases of a report."""

import math
from collections.abc import Iterator, Sequence

from roundscope.attention.testing.cases import Answer, Case
from roundscope.attention.testing.comparison import Comparison, Finding, State
from roundscope.tools.identify.identify import Identified, Kind

BITS = "the arithmetic of its bits"  # the name of the one case of the explanation
OF = {"envelope": ("rms", "row"), "bias": ("gain", "mean")}


def of_comparison(compared: Comparison, test: str, seconds: float) -> Iterator[Case]:
    """Yield a case for each kind of inputs and each result.

    compared   the comparison
    test       "envelope" for the errors and gross heads, "bias" for gains and mean errors
    seconds    how long the comparison took, which the cases share
    """
    asked: dict[tuple[str, str], list[Finding]] = {}
    for finding in compared.findings:
        if finding.statistic in OF[test]:
            asked.setdefault((finding.inputs, finding.result), []).append(finding)
    if test == "envelope":
        for kind, words in compared.raised.items():
            sentence = f"It raised an error on these inputs: {words}."
            yield Case(test=test, name=kind, answer=Answer.FAIL, sentence=sentence)
    for (kind, result), findings in asked.items():
        yield Case(
            test=test,
            name=f"{kind}: {result}",
            **_answer(compared, test, kind, result, findings),  # type: ignore[arg-type]
            seconds=seconds / len(asked),
        )


def _answer(
    compared: Comparison, test: str, kind: str, result: str, findings: Sequence[Finding]
) -> dict[str, object]:
    """Return the answer and the sentence of a case."""
    if test == "envelope":
        gross = [g for g in compared.gross if (g.inputs, g.result) == (kind, result)]
        if gross:
            worst = max(gross, key=lambda g: g.size)
            words = worst.sentence.removeprefix(f"{kind}: {result}: ")
            is_lost = worst.feature is not None
            return {"answer": Answer.FAIL, "sentence": f"{capital(words)}.", "is_lost": is_lost}
    alarms = [f for f in findings if f.evidence.state is State.ALARM]
    if alarms:
        worst_of = min(alarms, key=lambda f: f.evidence.chance)
        words = worst_of.sentence.removeprefix(f"{kind}: {result}: ")
        return {"answer": Answer.FAIL, "sentence": f"{capital(words)}."}
    if any(f.evidence.state is State.UNDEFINED for f in findings):
        words = "It has none: there are numbers that are not finite, see envelope"
        return {"answer": Answer.NOT_RUN, "sentence": f"{words}."}
    sentence = "; ".join(_shown(f) for f in {f.statistic: f for f in findings}.values())
    if any(f.evidence.state is State.OPEN for f in findings):
        more = "more draws would decide whether that is chance"
        return {"answer": Answer.NOTE, "sentence": f"{capital(sentence)}; {more}."}
    return {"answer": Answer.PASS, "sentence": f"{capital(sentence)}."}


def _shown(f: Finding) -> str:
    if f.statistic in ("rms", "row"):
        ratio = math.exp(f.evidence.mean)
        what = "error" if f.statistic == "rms" else "worst row"
        return f"{what} {f.kernel:.3g}, {ratio:.3f} of the plan's"
    return f"{f.statistic} {f.kernel:+.2g}, plan {f.plan:+.2g}"


def of_search(found: Identified) -> Case:
    """Return the case of the search for a plan that gives the kernel's bits, in every head."""
    answer = {
        Kind.SAME: Answer.PASS,
        Kind.NEAR: Answer.NOTE,
        Kind.NOT_FOUND: Answer.NOTE,
        Kind.NO_ROUNDING: Answer.FAIL,
        Kind.MEANING: Answer.FAIL,
    }[found.kind]
    changes = [what for what, _ in found.forward.others[:3]]
    more = f" Nearest further changes: {', '.join(changes)}." if changes else ""
    return Case(
        test="explanation",
        name=BITS,
        answer=answer,
        sentence=found.verdict + more,
        seconds=found.seconds,
    )


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]
