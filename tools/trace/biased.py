"""The one sentence on biases: which results are too long or too short, which events are biased.

Results are tested by the scatter of their heads, events by the signs of their rows. The sentence
joins both, so that no reader finds two verdicts; the tables say which test spoke and how strongly.
"""

import math
from typing import TYPE_CHECKING

from roundscope.attention.budget.not_finite import number_words
from roundscope.attention.budget.parts import DIRECTED
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.trace.parts import site_of
from roundscope.emu.roundings.modes import Overflow
from roundscope.tools.report.wording import factor, listed, many
from roundscope.tools.trace.analysis.bias import Event
from roundscope.tools.trace.results import Result, score, z_words

if TYPE_CHECKING:
    from roundscope.tools.trace.summary import Summary

FINITE = "What follows is said of finite numbers alone; the others have no errors in ulps."
FEWEST = 4  # key heads, of which fewer have no scatter that tells a gain from chance
HINT = 3.0  # |z| from which a result may be too long or too short, though its limit is higher
HIGH = 5.0  # limit beyond which it is so high because heads are few
MOST = 4  # events that the sentence names
LOST = 0.01  # share of the numbers of an event that become 0 beyond which it is said
CUT = 0.001  # share of those beyond the format's largest number beyond which it explains a bias


def bias(s: "Summary") -> str:
    """Return which results are too long or too short, the cause, and which events are biased.

    It is said of finite numbers alone, and says so where others are.
    """
    return f"{FINITE} {_bias(s)}" if s.not_finite is not None else _bias(s)


def _bias(s: "Summary") -> str:
    of = _of_results(s)
    if not s.rounding:
        plain = "No event rounds: each of this plan is exact on these tensors"
        return f"{plain}, but {of}." if s.biased_results else f"{plain}."
    events = _of_events(s)
    if few_heads(s) and not s.biased_results:
        return f"{events[0].upper()}{events[1:]}. {_untold(s)}"
    more = _hinted(s)
    if s.biased_results:
        agree = "and" if s.biased_events else "though"
        return f"Biased: {of}, {agree} {events}.{more and f' {more}'}"
    more = more and f"{more} "
    if not of:
        return f"{more}{events[0].upper()}{events[1:]}."
    return f"{more}{of[0].upper()}{of[1:]}, {'though' if s.biased_events else 'and'} {events}."


def _of_results(s: "Summary") -> str:
    """Return the part of the sentence on results; "" where their heads have no scatter."""
    if s.biased_results:
        return f"{listed([too(r) for r in s.biased_results])}; {_cause(s)}"
    tested = [r for r in _tested(s) if r not in hints(s)]
    if not tested:
        return ""
    names = listed([r.name for r in tested])
    if len(tested) == 1:
        return f"{tested[0].name} is neither too long nor too short by more than chance"
    return f"none of {names} is too long or too short by more than chance"


def _tested(s: "Summary") -> list[Result]:
    """Return the results whose lengths are tested; [] where their heads have no scatter."""
    tested = [r for r in s.results if r.gain is not None and r.is_known]
    return tested if any(r.gain is not None and r.gain.se > 0.0 for r in tested) else []


def hints(s: "Summary") -> list[Result]:
    """Return the results far from chance, below a limit that is high since key heads are few."""
    return [
        r
        for r in _tested(s)
        if r.gain is not None
        and not r.is_biased
        and r.gain.limit > HIGH
        and abs(score(r.gain)) > HINT
        and not few_heads(s)
    ]


def _hinted(s: "Summary") -> str:
    """Return that key heads are too few to show what some results hint at; "" if none does."""
    found = hints(s)
    if not found or found[0].gain is None:
        return ""
    gains = [(r.name, r.gain) for r in found if r.gain is not None]
    named = listed(
        [
            f"{name} ({100 * g.mean:+.2g} ± {100 * g.se:.1g} %, {z_words(score(g))})"
            for name, g in gains
        ]
    )
    are, g = "is" if len(found) == 1 else "are", found[0].gain
    return (
        f"{many(g.heads, 'key head')} cannot show whether {named} {are} too long or too"
        f" short: of so few"
        f" chance alone gives a z of up to {g.limit:.1f}; trace more batch entries or heads."
    )


def few_heads(s: "Summary") -> int:
    """Return the number of key heads where they are too few to test a length; else 0."""
    heads = next((r.gain.heads for r in _tested(s) if r.gain is not None), 0)
    return heads if heads < FEWEST else 0


def _untold(s: "Summary") -> str:
    """Return that too few heads tell nothing of the lengths of results, and what would."""
    tested = _tested(s)
    assert tested[0].gain is not None
    whose, are = listed([r.name for r in tested]), "is" if len(tested) == 1 else "are"
    return (
        f"Whether {whose} {are} too long or too short cannot be said of"
        f" {many(few_heads(s), 'key head')},"
        f" of which chance alone gives a z of up to {tested[0].gain.limit:.0f}: trace more batch"
        " entries or heads for that."
    )


def _cause(s: "Summary") -> str:
    """Return what the error budget says of the cause of the furthest result."""
    if s.budget is None:
        return "an error budget would tell which event makes it so"
    first = s.biased_results[0].name
    line = culprit(s.budget, s.biased_results[0])
    if line is None:
        return "no event of the error budget makes a third of it alone"
    change = f"{100 * line.gain[first]:+.2g} %"
    return f"the largest cause is {line_words(line)}, which alone changes {first} by {change}"


def _of_events(s: "Summary") -> str:
    """Return the part of the sentence on events."""
    count, found = len(s.rounding), s.biased_events
    rounds = f"{count} events that round" if count != 1 else "the one event that rounds"
    if not found:
        return f"none of {rounds} is biased" if count != 1 else f"{rounds} is not biased"
    named = listed(
        [f"{event_name(s, e.name)} {way(e)}{why(s, e)}{_barely(e)}" for e in found[:MOST]]
    )
    more = f" (and {len(found) - MOST} smaller ones)" if len(found) > MOST else ""
    verb = "is" if len(found) == 1 else "are"
    return f"of {rounds} {len(found)} {verb} biased: {named}{more}"


def event_name(s: "Summary", name: str) -> str:
    """Return an event's name, marked if an error was injected there."""
    return f"{name} (injected)" if any(str(i.site) == name for i in s.request.inject) else name


def way(e: Event) -> str:
    """Return which ways an event is biased, by the tests that say so, and by how many ulps."""
    signed, away = (abs(x.error.mean) for x in (e.signed, e.away))
    up = "up" if e.signed.error.mean > 0 else "down"
    out = f"{'away from' if e.away.error.mean > 0 else 'toward'} zero"
    if e.signed.is_biased and e.away.is_biased:
        if f"{signed:.2g}" == f"{away:.2g}":
            return f"{up} and {out} by {signed:.2g} ulp"
        return f"{up} by {signed:.2g} ulp and {out} by {away:.2g} ulp"
    return f"{out} by {away:.2g} ulp" if e.away.is_biased else f"{up} by {signed:.2g} ulp"


def _barely(e: Event) -> str:
    """Return that a z is near its limit, which chance passes once in a hundred traces; or ""."""
    z = max((x.error.z for x in (e.signed, e.away) if x.is_biased), key=abs)
    limit = e.signed.limit
    near = (
        f" ({z_words(z)}, the limit is {limit:.1f}; one trace in a hundred has such a chance hit)"
    )
    return near if abs(z) < limit + 1.0 else ""


def why(s: "Summary", e: Event) -> str:
    """Return why an event that rounds to nearest is biased toward zero, in brackets; or ""."""
    if not (e.away.is_biased and e.away.error.mean < 0.0) or "." in e.name:
        return ""
    if s.request.plan[site_of(e.name)].mode in DIRECTED:
        return ""
    if e.share("underflow") > LOST:
        return f" (since {100 * e.share('underflow'):.0f} % of it become 0)"
    if e.share("overflow") > CUT and s.request.plan[site_of(e.name)].overflow is Overflow.SATURATE:
        return f" (since {100 * e.share('overflow'):.2g} % of it are cut off at its largest number)"
    return ""


def too(r: Result) -> str:
    """Return by how much a result is too long or too short, with its z."""
    assert r.gain is not None
    side = "long" if r.gain.mean > 0.0 else "short"
    return f"{r.name} is too {side} by {percent(abs(r.gain.mean))} ({z_words(score(r.gain))})"


def percent(part: float) -> str:
    """Return a part of 1 in percent with two digits, or, of 2 and more, as a factor."""
    if not math.isfinite(part):
        return number_words(part)
    if part >= 2.0:
        return f"{factor(part)} times its size"
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"


def culprit(budget: ErrorBudget | None, result: Result) -> Line | None:
    """Return the line that alone makes most of a result's gain, if it makes over a third of it."""
    if budget is None or result.gain is None or result.name not in budget.gain:
        return None
    whole = result.gain.mean
    lines = [x for x in budget.lines if x.gain[result.name] * whole > 0.0]
    most = max(lines, key=lambda x: abs(x.gain[result.name]), default=None)
    return most if most is not None and abs(most.gain[result.name]) > abs(whole) / 3 else None


def line_words(line: Line) -> str:
    """Return the event and what it rounds to, in words."""
    return f"{line.part.name} ({line.part.how})" if line.part.places else "the injected error"
