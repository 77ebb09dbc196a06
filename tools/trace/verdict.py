"""The verdict of a trace: how exact the results are, what makes their errors, what to try next."""

import math
import shlex
from dataclasses import dataclass

from roundscope.attention.budget.not_finite import number_words
from roundscope.attention.budget.parts import promotion, repair
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.tools.report.wording import listed
from roundscope.tools.trace.results import EVENT, Result, score, z_words
from roundscope.tools.trace.summary import Summary

LAST_DIGIT = 1e-7  # relative error that leaving in float32 makes, and more
CLOSE = 1.25  # times the least error of its format that a result may have to be called the least


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reader should know after one minute.

    accuracy   how far the output is from exact attention, and from what is possible
    bias       which results are too long or too short, and which event makes them so
    causes     which event makes most of the error of each result
    number     the relative rms error of the output, as text
    step       the options to add to the command for the next step; "" if there is none
    buys       what that step would show, after "to see how"
    """

    accuracy: str
    bias: str
    causes: str
    number: str
    step: str
    buys: str

    @property
    def text(self) -> str:
        """The sentences in order."""
        return " ".join(x for x in (self.accuracy, self.bias, self.causes) if x)


def verdict(s: Summary) -> Verdict:
    """Return the verdict on one layer."""
    step, buys, found = "", "", s.not_finite
    if found is not None and found.avoided_by:
        step = " ".join(f"--set {shlex.quote(w)}" for w in found.avoided_by)
        buys = "no number of a result is infinite or NaN then"
    elif (promoted := _to_promote(s)) is not None:
        step, buys = _step(s, *promoted)
    return Verdict(
        accuracy=_accuracy(s),
        bias=_bias(s),
        causes=_causes(s),
        number=percent(s.results[0].error),
        step=step,
        buys=buys,
    )


def percent(part: float) -> str:
    """Return a part of 1 in percent with two digits, or, of 2 and more, as a factor."""
    if not math.isfinite(part):
        return number_words(part)
    if part >= 2.0:
        return f"{part:.2g} times its size"
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"


def less(before: float, after: float) -> str:
    """Return by how much an error gets smaller, in words."""
    if math.isinf(before):
        return f"finite: {after:.1e}"
    return f"{100 * (1 - after / before):.0f} % smaller"


def _accuracy(s: Summary) -> str:
    """Return how far the output is from exact attention, after what is infinite or NaN."""
    if s.not_finite is None:
        return _distances(s)
    rest = _distances(s) if s.results[0].is_known else _gradients(s)
    return f"{s.not_finite} {rest}".strip()


def _distances(s: Summary) -> str:
    out, against = s.results[0], s.request.against.name
    whose = "exact attention" if against == "exact" else f"the output of {against}"
    finite = _finite_part(s, "out")
    if out.error < LAST_DIGIT:
        return f"The output is {whose}, to the last digit of float32{finite}."
    first = f"The output differs from {whose} by {percent(out.error)} (relative rms error){finite}"
    if out.least and math.isfinite(out.least):
        times = out.error / out.least
        name = s.request.plan[EVENT["out"]].format.name
        once = f"rounding the exact output to {name} once"
        first += (
            f", hardly more than {once} ({percent(out.least)})"
            if times < CLOSE
            else f", {times:.2g} times as much as {once}"
        )
    if out.cast:
        first += f"; casting the inputs alone makes {percent(out.cast)}"
    return f"{first}. {_gradients(s)}".strip()


def _finite_part(s: Summary, name: str) -> str:
    """Return words for a result of which only the finite part has an error."""
    found = s.not_finite
    return ", where both are finite" if found is not None and name in found.shared else ""


def _gradients(s: Summary) -> str:
    """Return the errors of the gradients, and how many times the least of their format they are."""
    known = [r for r in s.results[1:] if r.gain is not None and r.error and r.is_known]
    if not known:
        return ""
    least = [r.least if r.least and math.isfinite(r.least) else None for r in known]
    gradients = ", ".join(
        f"{r.name} {percent(r.error)}" + (f" ({r.error / x:.2g} times one rounding)" if x else "")
        for r, x in zip(known, least, strict=True)
    )
    finite = next((x for r in known if (x := _finite_part(s, r.name))), "")
    return f"The gradients differ{finite}{',' if finite else ''} by: {gradients}."


def _bias(s: Summary) -> str:
    """Return which results are too long or too short, and which event makes them so."""
    if not s.biased_results:
        tested = [r for r in s.results if r.gain is not None and r.is_known]
        if not any(r.gain is not None and r.gain.se > 0.0 for r in tested):
            return ""
        if len(tested) == 1:
            return f"{tested[0].name} is neither too long nor too short by more than chance."
        names = listed([r.name for r in tested])
        return f"None of {names} is too long or too short by more than chance."
    text, first = f"Biased: {listed([too(r) for r in s.biased_results])}.", s.biased_results[0].name
    cause = culprit(s.budget, s.biased_results[0])
    if cause is None:
        return text
    change = f"{100 * cause.gain[first]:+.2g} %"
    return (
        f"{text} The largest cause is {line_words(cause)}, which alone changes {first} by {change}."
    )


def too(r: Result) -> str:
    """Return by how much a result is too long or too short, with its z."""
    assert r.gain is not None
    way = "long" if r.gain.mean > 0.0 else "short"
    return f"{r.name} is too {way} by {percent(abs(r.gain.mean))} ({z_words(score(r.gain))})"


def culprit(budget: ErrorBudget | None, result: Result) -> Line | None:
    """Return the line that alone makes most of a result's gain, if it makes over a third of it."""
    if budget is None or result.gain is None or result.name not in budget.gain:
        return None
    whole = result.gain.mean
    lines = [x for x in budget.lines if x.gain[result.name] * whole > 0.0]
    most = max(lines, key=lambda x: abs(x.gain[result.name]), default=None)
    return most if most is not None and abs(most.gain[result.name]) > abs(whole) / 3 else None


def _causes(s: Summary) -> str:
    """Return which event makes most of the squared error of each result."""
    budget, found = s.budget, s.not_finite
    if budget is None or not budget.lines:
        return ""
    named: dict[str, list[str]] = {}
    for name in _with_shares(budget):
        line = budget.largest(name)
        share = f"{100 * budget.share(line, name):.0f} % in {name}"
        named.setdefault(line_words(line), []).append(share)
    parts = [f"{event} makes {listed(shares)}" for event, shares in named.items()]
    n = len(budget.heads)
    every = s.layer.q.shape[2]
    heads = "" if n == every else f", measured on {n} of the {every} heads"
    shares = f"Of the squared error{heads}, {listed(parts)}." if parts else ""
    is_said = found is not None and found.avoided_by
    return f"{'' if is_said else _infinite_causes(budget)} {shares}".strip()


def _with_shares(budget: ErrorBudget) -> list[str]:
    """Return the results that have an error, and a finite one, so that it has shares."""
    return [n for n, x in budget.total.items() if x > 0.0 and math.isfinite(x)]


def _infinite_causes(budget: ErrorBudget) -> str:
    """Return without which events results with an infinite error become finite."""
    infinite = [n for n, x in budget.total.items() if math.isinf(x)]
    if not infinite:
        return ""
    texts = []
    for line in budget.lines:
        if rescued := [n for n in infinite if line.rescues(n, budget.total)]:
            texts.append(f"Without {line_words(line)} alone, {listed(rescued)} would be finite.")
    if texts:
        return " ".join(texts[:3])
    alone = {
        line_words(line): names
        for line in budget.lines
        if (names := [n for n in infinite if math.isinf(line.alone[n])])
    }
    made = [
        f"{event} alone makes {listed(names)} infinite or NaN" for event, names in alone.items()
    ]
    return (
        f"Several events: {listed(made[:3])}." if len(made) > 1 else "".join(f"{x}." for x in made)
    )


def line_words(line: Line) -> str:
    """Return the event and what it rounds to, in words."""
    return f"{line.part.name} ({line.part.how})" if line.part.places else "the injected error"


def _to_promote(s: Summary) -> tuple[Line, str] | None:
    """Return the event whose promotion makes the error of some result least, and that result.

    Where a result is biased, it is the event that makes it so; where an injected error makes most
    of an error, there is none.
    """
    budget = s.budget
    if budget is None or not budget.lines or not budget.lines[0].part.places:
        return None
    biased = s.biased_results[0] if s.biased_results else None
    cause = None if biased is None else culprit(budget, biased)
    if biased is not None and cause is not None and len(cause.part.places) == 1:
        return cause, biased.name
    choices = [
        (line.without[name] / budget.total[name], line, name)
        for line in budget.lines
        if line.without is not None and len(line.part.places) == 1
        for name in _with_shares(budget)
    ]
    best = min(choices, key=lambda x: x[0], default=None)
    return None if best is None or best[0] > 0.95 else best[1:]


def _step(s: Summary, line: Line, result: str) -> tuple[str, str]:
    """Return the options that repair a biasing event or promote another one, and what that does."""
    budget, plan = s.budget, s.request.plan
    assert budget is not None
    repairs = repair(plan, line.part) if any(r.name == result for r in s.biased_results) else []
    words = [f"--set {shlex.quote(w)}" for w in repairs or promotion(plan, line.part)]
    if repairs:
        return " ".join(words), f"far {result} is off when {line.part.name} rounds without a bias"
    before = budget.total[result]
    after = line.without[result] if line.without is not None else before
    return " ".join(words), f"the error of {result} gets {less(before, after)}"
