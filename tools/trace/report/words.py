"""The findings of a trace in words: the text that opens the table and the report."""

from dataclasses import replace

from roundscope.attention import Plan
from roundscope.attention.grammar.differences import differences
from roundscope.attention.grammar.injections import injection_words
from roundscope.attention.trace.parts import site_of
from roundscope.emu.roundings.modes import Overflow
from roundscope.events.plan import base_name
from roundscope.tools.report.wording import factor, listed
from roundscope.tools.trace.analysis.bias import Event, MeanError, threshold
from roundscope.tools.trace.analysis.consequences import DeltaDrift
from roundscope.tools.trace.biased import LOST, bias, event_name, too
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.results import unchanged, z_words
from roundscope.tools.trace.summary import Summary, share_of_rows

SEEN, SEEN_WORDS = 1.1, "10 %"  # how many times an error an injection has to make of it
UNKNOWN = 1e-3  # the part of a squared error below which it does not say how large is enough
COINS = "standard deviations of random signs"


def sentence(s: Summary) -> str:
    """Return which results and events are biased, and what follows for delta."""
    return " ".join(filter(None, (_not_finite(s), bias(s), details(s))))


def details(s: Summary) -> str:
    """Return what a verdict leaves out: what is cut off, delta, and rows with several P = 1."""
    statements = (_injected(s), _cleared(s), _clipping(s), _delta(s), _ones(s))
    return " ".join(filter(None, statements))


def short(s: Summary) -> str:
    """Return one line: which events and results are biased, and whether delta's error adds up."""
    events = [f"{event_name(s, e.name)} {_ways(e)} ulp" for e in s.biased_events[:3]]
    if len(s.biased_events) > 3:
        events.append(f"{len(s.biased_events) - 3} more")
    of = " among the finite numbers" if s.not_finite is not None else ""
    parts = [_not_finite(s).rstrip("."), f"biased events{of}: {'; '.join(events) or 'none'}"]
    if s.biased_results:
        parts.append(f"biased results: {', '.join(too(r) for r in s.biased_results)}")
    if s.drift is not None and s.drift.lost:
        parts.append(f"{s.drift.lost:,} errors of delta are infinite")
    elif s.drift is not None:
        sums = ", adds up" if s.drift.leans else ""
        parts.append(f"delta, most extreme head: {z_words(s.drift.z[s.drift.worst])}{sums}")
    return ". ".join(p for p in parts if p) + "."


def _injected(s: Summary) -> str:
    """Return how many entries injections hit, by event."""
    parts = [f"{hit:,} of {n:,} entries of {name}" for name, (hit, n) in s.hits.items()]
    return f"Injected errors hit {listed(parts)}.{_unseen(s)}" if parts else ""


def _unseen(s: Summary) -> str:
    """Return that injected errors are too small to see, and how large they would have to be.

    That is asked where the plan stands beside itself without them. Independent errors add in
    squares, and those that are injected grow with their size.
    """
    beside, plan = s.request.beside, s.request.plan
    ratios = [r.error / r.beside for r in s.results if r.gain and r.beside and r.is_known]
    if beside is None or beside != replace(plan, name=beside.name) or not ratios:
        return ""
    most = max(ratios)
    if most >= SEEN or s.biased_results:
        return ""
    text = f" No result's error grows by more than {100 * (max(most, 1.0) - 1.0):.2g} %"
    if most**2 - 1.0 < UNKNOWN:
        return f"{text}: they are too small to be seen there."
    times = ((SEEN**2 - 1.0) / (most**2 - 1.0)) ** 0.5
    much = f"errors about {factor(times)} times as large"
    return f"{text}; {much} would make one {SEEN_WORDS} larger."


def plan_words(request: Request) -> str:
    """Return the plan in words: its preset, every change of it, and what was injected."""
    name, changes = request.plan.name, plan_changes(request.plan)
    if changes:
        name = f"{base_name(name)} with {' '.join(changes)}"
    if request.inject:
        name += f", injected {' '.join(injection_words(i) for i in request.inject)}"
    return name


def plan_changes(plan: Plan) -> list[str]:
    """Return the words of --set that changed the plan from its preset."""
    return differences(plan, unchanged(plan))


def _not_finite(s: Summary) -> str:
    """Return how many numbers are infinite or NaN, where they begin, and what avoids them.

    Where all results are finite it is the number of NaN and infinities in the inputs and scores.
    The text is empty where these are finite too.
    """
    if s.not_finite is not None:
        return str(s.not_finite)
    counts = {e.name: int(e.counts["nan"]) for e in s.events}
    then = [
        f"{counts[site]} {what}{'s' * (counts[site] > 1)}"
        for site, what in (("S", "score"), ("OUT", "output"))
        if counts.get(site)
    ]
    if not s.strange and not then:
        return ""
    follow = f"{', '.join(then)} are NaN" if then else "no score or output is NaN"
    return f"{', '.join(s.strange) or 'The inputs are finite'}; {follow}."


def _clipping(s: Summary) -> str:
    """Return the events that are cut off at their format's largest number, or of over 1 % are 0."""
    plan = s.request.plan
    cut = [
        f"{int(e.counts['overflow']):,} of {e.name}"
        for e in s.rounding
        if e.counts["overflow"] and "." not in e.name
        if plan[site_of(e.name)].overflow is Overflow.SATURATE
    ]
    lost = [
        f"{100 * e.share('underflow'):.0f} % of {e.name}"
        for e in s.rounding
        if e.share("underflow") > LOST
    ]
    beyond = "are beyond the format's largest number and cut off there, toward zero"
    pairs = ((cut, beyond), (lost, "become 0"))
    return " ".join(f"{listed(names)} {what}." for names, what in pairs if names)


def _ways(e: Event) -> str:
    """Return which ways an event is biased, by the tests that say so, and by how much."""
    signed, away = e.signed, e.away
    up = "up" if signed.error.mean > 0 else "down"
    out = f"{'away from' if away.error.mean > 0 else 'toward'} zero"
    if signed.is_biased and away.is_biased:
        if abs(signed.error.mean) == abs(away.error.mean):  # all arguments have one sign
            return f"{up}, {out}, by {_mean(signed.error)}"
        return f"{up} by {_mean(signed.error)} and {out} by {_mean(away.error)}"
    return f"{out} by {_mean(away.error)}" if away.is_biased else f"{up} by {_mean(signed.error)}"


def _mean(x: MeanError) -> str:
    return f"{abs(x.mean):.2g} ± {x.se:.1g}"


def _cleared(s: Summary) -> str:
    if not s.cleared:
        return ""
    parts = ", ".join(f"{event_name(s, e.name)} ({e.distinct:,})" for e in s.cleared)
    return (
        f"{parts} {'looks' if len(s.cleared) == 1 else 'look'} biased row by row, but many rows"
        " share few distinct arguments (their number in brackets); with one random sign per"
        " argument that may be chance."
    )


def _delta(s: Summary) -> str:
    if s.drift is None:
        return "The file has no do, so there is no backward and no delta."
    z, head = float(s.drift.z[s.drift.worst]), s.drift.worst[1]
    against = s.request.against.name
    if s.drift.lost:
        return (
            f"{s.drift.lost:,} of {s.drift.error.size:,} errors of delta against {against} are"
            " infinite, so they do not add up to a number."
        )
    if not s.drift.error.any():
        if s.not_finite is not None and "delta" in s.not_finite.shared:
            return f"Where delta is finite, it equals that of {against}."
        return f"delta equals that of {against}."
    if s.drift.leans:
        sign = "positive" if z > 0 else "negative"
        return (
            f"The error of delta against {against} adds up along tokens: head {head} ends {sign},"
            f" at {abs(z):.1f} {COINS}."
        )
    return (
        f"The error of delta against {against}, summed over all tokens, does not add up: the"
        f" most extreme head, {head}, {_course(s.drift)}ends at {abs(z):.1f} {COINS} (threshold"
        f" {s.drift.limit:.1f})."
    )


def _course(d: DeltaDrift) -> str:
    """Say that a running sum that ends within the threshold crossed it on the way, if it did."""
    if d.crossing is None:
        return ""
    return f"crosses the threshold at token {d.crossing} but comes back and "


def _ones(s: Summary) -> str:
    if s.several is None:
        return "P was too large to keep, so rows with several P = 1 were not counted."
    some, rows = share_of_rows(s)
    if not some:
        return "No row has several P = 1."
    text = f"{some} of {rows} rows have several P = 1"
    limit = threshold(max(len(s.shares), 1))
    apart = [x.site for x in s.shares if abs(x.z) > limit]
    if apart:
        return (
            f"{text}, and the errors of {listed(apart)} away from zero differ there from those of"
            " other rows."
        )
    if not s.shares:
        return f"{text}."
    return (
        f"{text}; the errors of {listed([x.site for x in s.shares])} are no more one-sided there"
        " than in other rows."
    )
