"""The verdict of a trace: how exact the results are, what makes their errors, what to try next."""

import math
import shlex
from dataclasses import dataclass

from roundscope.attention.budget.table import ErrorBudget
from roundscope.tools.report.wording import factor, listed
from roundscope.tools.trace.biased import bias, line_words, percent
from roundscope.tools.trace.repairs import Repair
from roundscope.tools.trace.results import CLOSE, EVENT, LAST_DIGIT, score, z_words
from roundscope.tools.trace.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reader should know after one minute.

    accuracy   how far the output is from exact attention, and from what is possible
    bias       which results are too long or too short, which event makes them so, and which events
               are biased
    causes     which event makes most of the error of each result
    number     the relative rms error of the output, as text
    step       the options to add to the command for the next step; "" if there is none
    buys       what that step shows, which was tried, after "to see how"
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
    elif s.repair is not None:
        step, buys = _step(s.repair, s)
    return Verdict(
        accuracy=_accuracy(s),
        bias=bias(s),
        causes=_causes(s),
        number=percent(s.results[0].error),
        step=step,
        buys=buys,
    )


def less(before: float, after: float) -> str:
    """Return by how much an error gets smaller, in words."""
    if math.isinf(before):
        return f"finite: {after:.1e}"
    if after < 0.005 * before:
        return f"{factor(before / after)} times smaller" if after else "zero"
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
            else f", {factor(times)} times as much as {once}"
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
        f"{r.name} {percent(r.error)}" + (f" ({_times(r.error / x)} one rounding)" if x else "")
        for r, x in zip(known, least, strict=True)
    )
    finite = next((x for r in known if (x := _finite_part(s, r.name))), "")
    return f"The gradients differ{finite}{',' if finite else ''} by: {gradients}."


def _times(x: float) -> str:
    """Return how many times one rounding an error is, before these words."""
    return "that of" if 0.95 <= x < 1.05 else f"{factor(x)} times"


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


def _step(found: Repair, s: Summary) -> tuple[str, str]:
    """Return the options of a repair that was tried, and what it does."""
    words, buys = _options(found), f"{_buys(found, s)}{_newly(found)}{_sums(found)}"
    if found.second is not None:
        more = f"{_buys(found.second, s)}{_newly(found.second)}{_sums(found.second)}"
        buys += f", with as many bits as before; with {_options(found.second)} {more}"
    return words, buys


def _sums(found: Repair) -> str:
    """Return why a repair changes sums that are no fault, after what it does; or ""."""
    ending = ".sum=ascending"
    sums = [w.removesuffix(ending) for w in found.words if w.endswith(ending)]
    if not sums:
        return ""
    them = "it is a sum" if len(sums) == 1 else "they are sums"
    return f" ({listed(sums)}: no tensor core reads FP32, so {them} in ascending order then)"


def _options(found: Repair) -> str:
    return " ".join(f"--set {shlex.quote(w)}" for w in found.words)


def _newly(found: Repair) -> str:
    """Return which results a repair makes biased that were not; or ""."""
    told = [
        f"{name} is then {percent(abs(x.mean))} too {'long' if x.mean > 0.0 else 'short'}"
        for name, x in found.newly
    ]
    return f" ({listed(told)}, which this unmasks)" if told else ""


def _buys(found: Repair, s: Summary) -> str:
    """Return what a repair does to the result that it is for."""
    result = next(r for r in s.results if r.name == found.result)
    if result.is_biased and found.gain is not None and math.isfinite(found.gain.mean):
        how = "has more bits" if found.is_wider else "rounds without a bias"
        assert result.gain is not None
        left = f"{100 * found.gain.mean:+.2g} % ({z_words(score(found.gain))})"
        was = f"{100 * result.gain.mean:+.2g} %"
        return f"{result.name} is off by {left}, not {was}, when {found.line.part.name} {how}"
    buys = f"the error of {result.name} gets {less(result.error, found.error)}"
    if result.unit:
        times = [result.times, result.times * found.error / result.error]
        first, then = (factor(x) if x >= 10.0 else f"{x:.1f}" for x in times)
        buys += f", from {first} to {then} times one rounding"
    return buys
