"""What `roundscope check` has found: its cases, and the sentence that stands above them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from roundscope.attention.testing.cases import Answer, Case
from roundscope.attention.testing.comparison import Comparison, Finding, State
from roundscope.attention.testing.edges import NAN, RULED
from roundscope.attention.testing.errors import Margins
from roundscope.tools.check.options import CheckOptions
from roundscope.tools.identify.identify import Identified, Kind
from roundscope.tools.report.wording import listed, many

BITS = "the arithmetic of its bits"  # the name of the one case of the explanation
OF = {"envelope": ("rms", "row"), "bias": ("gain", "mean")}
MARGINS = Margins()  # how much worse than its plan a kernel may be
MANY = 3  # further inputs with numbers that are not finite, which the sentence names
QUESTIONS = {
    "envelope": "Is it as exact as the plan?",
    "bias": "Is it more biased than the plan?",
    "explanation": "Does a known arithmetic explain its numbers?",
    "invariance": "Does it give the same however it is called?",
    "edges": "Is it right at the edges?",
}


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a check has found.

    name         the name of the kernel or of the file
    about        what it was called on, in words
    asked        what was asked
    cases        every question with its answer
    compared     the comparison with the plan; None if neither envelope nor bias was asked for
    search       the search for the arithmetic of its bits; None if there was none
    notes        what the reader must know
    seconds      how long it took
    """

    name: str
    about: str
    asked: CheckOptions
    cases: list[Case] = field(default_factory=list)
    compared: Comparison | None = None
    search: Identified | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Case]:
        """The cases that failed."""
        return [case for case in self.cases if case.answer is Answer.FAIL]

    @property
    def is_fine(self) -> bool:
        """True if no case failed."""
        return not self.failed

    def of(self, test: str) -> list[Case]:
        """Return the cases of a test."""
        return [case for case in self.cases if case.test == test]

    @property
    def is_open(self) -> bool:
        """True if no case failed, but an error is beyond its margin without evidence."""
        return self.is_fine and bool(self._not_told())

    @property
    def sentence(self) -> str:
        """The answer as one sentence; before it, the numbers that are not finite, if any."""
        if self.is_fine:
            if open_ := self._not_told():
                return f"Whether {self.name} is as exact as {self.asked.plan} is not told{open_}."
            return f"{self.name} is as good as {self.asked.plan}{self._how_good()}."
        tests = [test for test in QUESTIONS if any(c.test == test for c in self.failed)]
        words = {
            "envelope": "it is less exact",
            "bias": "it is biased",
            "explanation": f"none of the {self.tried:,} plans tried explains its numbers",
            "invariance": "its results depend on how it is called",
            "edges": "it fails at edges",
        }
        begin = f"{self._lost()}{self.name} is not as good as {self.asked.plan}: "
        if not self.cause:
            said = f"{begin}{'; '.join(words[test] for test in tests)}."
            first_case = self.failed[0]
            if {*tests} <= {"invariance", "edges"} and not first_case.is_lost:
                said += f" {first_case.name}: {first_case.sentence}"
            return said
        first = [test for test in tests if test in OF]
        own = self._own_edges()
        failed = {c.test for c in self.failed if _edge(c) not in own}
        after = [t for t in tests if t not in first and t != "explanation" and t in failed]
        said = f"{begin}{self.cause}."
        if first:
            reasons = "; ".join(words[test] for test in first)
            said += f" {reasons[:1].upper()}{reasons[1:]}."
        if first and after:  # what one mistake breaks elsewhere is no second one
            said += f" It also fails {listed(after)}, which may follow from that."
        elif after:
            reasons = "; ".join(words[test] for test in after)
            said += f" {reasons[:1].upper()}{reasons[1:]}."
        return f"{said} It also fails {listed(own)}, which that does not explain." if own else said

    def _own_edges(self) -> list[str]:
        """The failed edges that the cause does not explain: no mistake elsewhere hides a NaN."""
        apart = (NAN,) if self.suspect else RULED
        return list(dict.fromkeys(_edge(c) for c in self.failed if _edge(c) in apart))

    @property
    def suspect(self) -> str:
        """Which mistake in the code explains a gross failure, in words; "" if none is known."""
        return "" if self.compared is None else self.compared.suspect

    @property
    def explained(self) -> Identified | None:
        """The search, if it found what the kernel does that the claimed plan does not.

        A rounding makes no kernel hide a NaN or write to rows that see no key, so that it explains
        nothing where these alone fail.
        """
        if self.search is None or not self.search.cause:
            return None
        edges = [case.name.removesuffix(", full") for case in self.failed if case.test == "edges"]
        if len(edges) == len(self.failed) and {*edges} <= {*RULED}:
            return None
        return None if self.search.is_plan(self.asked.reference().plan) else self.search

    @property
    def cause(self) -> str:
        """What explains a failure, in words: a mistake in the code, or another arithmetic.

        The search knows more roundings, and whole meanings of a call; a mistake that explains a
        gross failure comes first.
        """
        if self.suspect:
            return self.suspect
        if self.explained is not None:
            return self.explained.cause_beside(self.asked.reference().plan)
        return "" if self.compared is None else self.compared.other

    @property
    def tried(self) -> int:
        """How many plans the search compared with the kernel's numbers."""
        return 0 if self.search is None else self.search.tried

    def _lost(self) -> str:
        """Return the first numbers that are not finite as a sentence, with the inputs of all."""
        lost = [case for case in self.failed if case.is_lost]
        if not lost:
            return ""
        first = f"{lost[0].name}: {lost[0].sentence} "
        others = list(dict.fromkeys(case.name for case in lost))[1:]
        if not others:
            return first
        more = f" and {len(others) - MANY} more" if len(others) > MANY else ""
        return f"{first}Numbers are not finite also in {', '.join(others[:MANY])}{more}. "

    def _not_told(self) -> str:
        """Return the largest error beyond its margin of which so few heads give no evidence."""
        if self.compared is None:
            return ""
        beyond = [
            f
            for f in self.compared.findings
            if f.statistic == "rms"
            and f.evidence.state is State.OPEN
            and f.evidence.mean > MARGINS.of("rms")
        ]
        if not beyond:
            return ""
        beyond.sort(key=lambda f: -f.evidence.mean)
        sizes = [f"{f.result} {math.exp(f.evidence.mean):.2f} times ({f.inputs})" for f in beyond]
        more = f" and {len(sizes) - MANY} more" if len(sizes) > MANY else ""
        return (
            f" with {many(self.compared.heads, 'head')}: no alarm, but errors beyond the margin of"
            f" {MARGINS.rms:g} times the plan's: {', '.join(sizes[:MANY])}{more}"
        )

    def _how_good(self) -> str:
        parts = []
        if self.compared is not None:
            kinds = len({f.inputs for f in self.compared.findings})
            parts.append(
                f"as exact and no more biased on {many(self.compared.heads, 'head')} of"
                f" {many(kinds, 'kind')} of inputs"
            )
        edges = self.of("edges")
        right = sum(c.answer is Answer.PASS for c in edges)
        if right:
            parts.append(f"right at {right} edges")
        noted = [c.name for c in edges if c.answer is Answer.NOTE]
        if noted:
            parts.append(f"with a note at {len(noted)}: {', '.join(noted)}")
        return ": " + ", and ".join(parts) if parts else ""


def _edge(case: Case) -> str:
    """Return the name of an edge, the same in causal and in full calls; "" for other tests."""
    return case.name.removesuffix(", full") if case.test == "edges" else ""


def of_comparison(compared: Comparison, test: str, seconds: float) -> Iterator[Case]:
    """Yield a case for each kind of inputs and each result; they share the seconds that it took.

    test: "envelope" for the errors and gross heads, "bias" for gains and mean errors
    """
    asked: dict[tuple[str, str], list[Finding]] = {}
    for finding in compared.findings:
        if finding.statistic in OF[test]:
            asked.setdefault((finding.inputs, finding.result), []).append(finding)
    if test == "envelope":
        yield from _of_sums(compared)
        for kind, words in compared.raised.items():
            sentence = f"It raised an error on these inputs: {words}."
            yield Case(test=test, name=kind, answer=Answer.FAIL, sentence=sentence)
    for (kind, result), findings in asked.items():
        answer, words, is_lost = _answer(compared, test, kind, result, findings)
        words = words.removeprefix(f"{kind}: {result}: ")
        yield Case(
            test=test,
            name=f"{kind}: {result}",
            answer=answer,
            sentence=f"{words[:1].upper()}{words[1:]}.",
            is_lost=is_lost,
            seconds=seconds / len(asked),
        )


def _of_sums(compared: Comparison) -> Iterator[Case]:
    """Yield a case for each kind of inputs on which the kernel returned L."""
    for kind, (kernel, plan) in compared.sums.items():
        gross = [g for g in compared.gross if (g.inputs, g.result) == (kind, "lse")]
        words = f"Largest error of L {kernel:.3g}, plan {plan:.3g}"
        if gross:
            worst = max(gross, key=lambda g: g.size)
            words = worst.sentence.removeprefix(f"{kind}: lse: ")
        yield Case(
            test="envelope",
            name=f"{kind}: lse",
            answer=Answer.FAIL if gross else Answer.PASS,
            sentence=f"{words[:1].upper()}{words[1:]}.",
            is_lost=any(g.feature is not None for g in gross),
        )


def _answer(
    compared: Comparison, test: str, kind: str, result: str, findings: Sequence[Finding]
) -> tuple[Answer, str, bool]:
    """Return the answer of a case, its words, and whether numbers are lost."""
    gross = [g for g in compared.gross if (g.inputs, g.result) == (kind, result)]
    if test == "envelope" and gross:
        worst = max(gross, key=lambda g: g.size)
        return Answer.FAIL, worst.sentence, worst.feature is not None
    if alarms := [f for f in findings if f.evidence.state is State.ALARM]:
        return Answer.FAIL, min(alarms, key=lambda f: f.evidence.chance).sentence, False
    if any(f.evidence.state is State.UNDEFINED for f in findings):
        words = "It has none: there are numbers that are not finite, see envelope"
        return Answer.NOT_RUN, words, False
    words = "; ".join(_shown(f) for f in {f.statistic: f for f in findings}.values())
    if any(f.evidence.state is State.OPEN for f in findings):
        return Answer.NOTE, f"{words}; more draws would decide whether that is chance", False
    return Answer.PASS, words, False


def _shown(f: Finding) -> str:
    if f.statistic in ("rms", "row"):
        ratio = math.exp(f.evidence.mean)
        what = "error" if f.statistic == "rms" else "worst row"
        return f"{what} {f.kernel:.3g}, {ratio:.3f} of the plan's"
    return f"{f.statistic} {f.kernel:+.2g}, plan {f.plan:+.2g}"


def of_search(found: Identified, where: str) -> Case:
    """Return the case of the search for a plan that gives the kernel's bits, in every head.

    where: the tensors on which it was looked for, in words; "" for those of a file
    """
    answer = {
        Kind.SAME: Answer.PASS,
        Kind.NEAR: Answer.NOTE,
        Kind.NOT_FOUND: Answer.NOTE,
        Kind.LOW_BITS: Answer.FAIL,
        Kind.NO_ROUNDING: Answer.FAIL,
        Kind.MEANING: Answer.FAIL,
    }[found.kind]
    changes = [what for what, _ in found.forward.others[:3]]
    more = f" Nearest further changes: {', '.join(changes)}." if changes else ""
    return Case(
        test="explanation",
        name=BITS,
        answer=answer,
        sentence=f"{where}: {found.verdict}{more}" if where else found.verdict + more,
        seconds=found.seconds,
    )
