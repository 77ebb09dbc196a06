"""The findings of a trace in words: the text that opens the table and the report."""

import numpy as np

from roundscope.attention import Plan
from roundscope.attention.grammar.differences import differences
from roundscope.attention.grammar.injections import injection_words
from roundscope.experiments.trace.analysis.bias import Event, Lean
from roundscope.experiments.trace.analysis.consequences import DeltaDrift
from roundscope.experiments.trace.options import Request
from roundscope.experiments.trace.summary import Summary, share_of_rows

COINS = "standard deviations of random signs"


def sentence(s: Summary) -> str:
    """Return which events are biased, which way and by how much, and what follows from it.

    What follows is said of P V, O, OUT, the results and delta.
    """
    statements = (_not_finite, _left_out, _biased, _cleared, _chain, _vanishing, _delta, _ones)
    return " ".join(text for text in (state(s) for state in statements) if text)


def short(s: Summary) -> str:
    """Return one line: which events are biased, and whether delta's error adds up."""
    biased = [
        f"{_named(s, e.name)} {'up' if e.lean.mean > 0 else 'down'} by {_mean(e.lean)} ulp"
        for e in s.leaning[:3]
    ]
    if len(s.leaning) > 3:
        biased.append(f"{len(s.leaning) - 3} more")
    zero = [f"{_named(s, n)} {_zero(x)}" for n, x in outward(s).items()]
    groups = [", ".join(group) for group in (biased, zero) if group]
    of = " among the finite numbers" if s.seen.not_finite is not None else ""
    parts = [_not_finite(s).rstrip("."), f"biased{of}: {'; '.join(groups) or 'nothing'}"]
    if s.drift is not None and s.drift.lost:
        parts.append(f"{s.drift.lost:,} errors of delta are infinite")
    elif s.drift is not None:
        sums = ", adds up" if s.drift.leans else ""
        parts.append(f"delta, most extreme head: z = {s.drift.z[s.drift.worst]:+.1f}{sums}")
    return ". ".join(p for p in parts if p) + "."


def plan_words(request: Request) -> str:
    """Return the plan in words: its preset, every change of it, and what was injected."""
    name, changes = request.plan.name, plan_changes(request.plan)
    if changes:
        name = f"{name.rstrip('*')} with {' '.join(changes)}"
    if request.inject:
        name += f", injected {' '.join(injection_words(i) for i in request.inject)}"
    return name


def plan_changes(plan: Plan) -> list[str]:
    """Return the words of --set that changed the plan from its preset."""
    return differences(plan, Plan.preset(plan.name.rstrip("*"))) if plan.name.endswith("*") else []


def _not_finite(s: Summary) -> str:
    """Return how many numbers are infinite or NaN, where they begin, and what avoids them.

    Where all results are finite it is the number of NaN and infinities in the inputs and scores.
    The text is empty where these are finite too.
    """
    if s.seen.not_finite is not None:
        return str(s.seen.not_finite)
    layer, counts = s.seen.layer, {e.name: int(e.counts["nan"]) for e in s.events}
    given = []
    for name in ("q", "k", "v", "do", "sinks"):
        a = getattr(layer, name)
        if a is not None:
            bad = {"NaN": int(np.isnan(a).sum()), "infinite": int(np.isinf(a).sum())}
            given += [f"{n} {what} in {name}" for what, n in bad.items() if n]
    then = [
        f"{counts[site]} {what}{'s' * (counts[site] > 1)}"
        for site, what in (("S", "score"), ("OUT", "output"))
        if counts.get(site)
    ]
    if not given and not then:
        return ""
    follow = f"{', '.join(then)} are NaN" if then else "no score or output is NaN"
    return f"{', '.join(given) or 'The inputs are finite'}; {follow}."


def _left_out(s: Summary) -> str:
    """Return that numbers which are not finite take no part in what follows, if there are any."""
    if s.seen.not_finite is None:
        return ""
    return "What follows is said of finite numbers alone; the others have no errors in ulps."


def _vanishing(s: Summary) -> str:
    """Return the events of which more than 1 % underflow to zero."""
    lost = [
        f"{100 * e.share('underflow'):.0f} % of {e.name}"
        for e in s.rounding
        if e.share("underflow") > 0.01
    ]
    return f"{_and(lost)} become 0." if lost else ""


def outward(s: Summary) -> dict[str, Lean]:
    """Return those of P V, O and OUT that are biased away from zero or toward it."""
    return {site: x for site, x in s.away.items() if abs(x.z) > s.away_limit}


def _zero(x: Lean) -> str:
    return f"{'away from' if x.mean > 0 else 'toward'} zero by {_mean(x)} ulp"


def _biased(s: Summary) -> str:
    if not s.rounding:
        return "Nothing rounds: every event of this plan is exact on these tensors."
    if not s.leaning and outward(s):
        zero = "; ".join(f"{_named(s, n)} is biased {_zero(x)}" for n, x in outward(s).items())
        return (
            f"Of {len(s.rounding)} events that round, none is biased up or down"
            f" (|z| > {s.limit:.1f}); {zero}."
        )
    if not s.leaning:
        return (
            f"No event is biased: of {len(s.rounding)} events that round, none has a mean error"
            f" that random signs would not give (|z| > {s.limit:.1f})."
        )
    first = "; ".join(_bias_words(s, e) for e in s.leaning[:4])
    more = f"; and {len(s.leaning) - 4} smaller ones" if len(s.leaning) > 4 else ""
    verb = "is" if len(s.leaning) == 1 else "are"
    return f"Of {len(s.rounding)} events that round, {len(s.leaning)} {verb} biased: {first}{more}."


def _named(s: Summary, name: str) -> str:
    """Return an event's name, marked if it was injected."""
    return f"{name} (injected)" if any(str(i.site) == name for i in s.seen.request.inject) else name


def _bias_words(s: Summary, e: Event) -> str:
    moved = e.counts["away"] + e.counts["toward"]
    away = e.counts["away"] / moved if moved else 0.5
    zero = (
        f"{'away from' if away >= 0.5 else 'toward'} zero in {100 * max(away, 1 - away):.0f} % of"
        " its inexact events"
    )
    small = ", a relative error below 1e-8" if e.relative < 1e-8 else ""
    return (
        f"{_named(s, e.name)} {'up' if e.lean.mean > 0 else 'down'} by {_mean(e.lean)}"
        f" {e.format.name} ulp, {zero}{small}"
    )


def _mean(x: Lean) -> str:
    return f"{abs(x.mean):.2g} ± {x.se:.1g}"


def _cleared(s: Summary) -> str:
    if not s.cleared:
        return ""
    parts = ", ".join(f"{_named(s, e.name)} ({e.distinct:,})" for e in s.cleared)
    one = len(s.cleared) == 1
    return (
        f"{parts} {'looks' if one else 'look'} biased row by row, but many rows share few distinct"
        " arguments (their number in brackets); with one random sign per argument"
        f" {'it is' if one else 'they are'} not biased."
    )


def _chain(s: Summary) -> str:
    """Return which of P V, O and OUT are biased away from zero, and which are not biased at all."""
    if not s.away:
        is_said = s.rounding and s.seen.not_finite is None
        return "P V, O and OUT are exact here." if is_said else ""
    biased = {e.name for e in s.leaning}
    beyond = outward(s)
    quiet = [site for site in s.away if site not in beyond and site not in biased]
    parts = []
    if biased:  # without one, the first sentence has named those biased away from zero
        parts = [f"{_named(s, n)} is biased {_zero(x)}." for n, x in beyond.items()]
    if quiet:
        largest = max((s.away[n] for n in quiet), key=lambda x: abs(x.mean))
        size = f"{largest.mean:+.1g} ± {largest.se:.1g} ulp away from zero"
        rounding, verb, most = "The roundings", "are", "at most "
        if len(quiet) == 1:
            rounding, verb, most = "The rounding", "is", ""
        parts.append(
            f"{rounding} at {_and(quiet)} {verb} not biased, either up or down or away from zero"
            f" ({most}{size})."
        )
    return " ".join(parts)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _delta(s: Summary) -> str:
    if s.drift is None:
        return "The file has no do, so there is no backward and no delta."
    z, head = float(s.drift.z[s.drift.worst]), s.drift.worst[1]
    against = s.seen.request.against.name
    if s.drift.lost:
        return (
            f"{s.drift.lost:,} of {s.drift.error.size:,} errors of delta against {against} are"
            " infinite, so they do not add up to a number."
        )
    if not s.drift.error.any():
        if s.seen.not_finite is not None and "delta" in s.seen.not_finite.shared:
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
    apart = [x.site for x in s.shares if abs(x.z) > s.away_limit]
    if apart:
        return (
            f"{text}, and the errors of {_and(apart)} away from zero differ there from those of"
            " other rows."
        )
    if not s.shares:
        return f"{text}."
    return (
        f"{text}; the errors of {_and([x.site for x in s.shares])} are no more one-sided there than"
        " in other rows."
    )
