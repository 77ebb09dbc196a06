"""What a trace says, in words: the sentence that opens the table and the report."""

import numpy as np

from roundscope.attention import Plan
from roundscope.attention.grammar.differences import differences
from roundscope.attention.grammar.injections import injection_words
from roundscope.experiments.trace.analysis.bias import Event, Lean
from roundscope.experiments.trace.analysis.consequences import DeltaDrift
from roundscope.experiments.trace.options import Request
from roundscope.experiments.trace.summary import Summary, share_of_rows

COINS = "deviations of random signs"


def sentence(s: Summary) -> str:
    """Which events lean, which way, how much, and what follows for P V, O, OUT and delta."""
    return " ".join(
        part
        for part in (
            _not_finite(s),
            _leaning(s),
            _cleared(s),
            _chain(s),
            _results(s),
            _vanishing(s),
            _delta(s),
            _ones(s),
        )
        if part
    )


def short(s: Summary) -> str:
    """One line: what leans, and whether delta's error adds up."""
    lean = ", ".join(
        f"{_named(s, e.name)} {'up' if e.lean.mean > 0 else 'down'} by {_mean(e.lean)} ulp"
        for e in s.leaning[:3]
    )
    lean += f", {len(s.leaning) - 3} more" if len(s.leaning) > 3 else ""
    zero = ", ".join(f"{_named(s, n)} {_zero(x)}" for n, x in outward(s).items())
    parts = [
        _not_finite(s).rstrip("."),
        f"leaning: {'; '.join(x for x in (lean, zero) if x) or 'nothing'}",
    ]
    if s.drift is not None:
        parts.append(
            "delta, furthest head: z ="
            f" {s.drift.z[s.drift.worst]:+.1f}{', adds up' if s.drift.leans else ''}"
        )
    return ". ".join(p for p in parts if p) + "."


def plan_words(request: Request) -> str:
    """The plan by its preset and every change of it, and what was injected."""
    injected = (
        f", injected {' '.join(injection_words(i) for i in request.inject)}"
        if request.inject
        else ""
    )
    changes = plan_changes(request.plan)
    name = (
        f"{request.plan.name.rstrip('*')} with {' '.join(changes)}"
        if changes
        else request.plan.name
    )
    return name + injected


def plan_changes(plan: Plan) -> list[str]:
    """The words of --set that changed the plan."""
    return differences(plan, Plan.preset(plan.name.rstrip("*"))) if plan.name.endswith("*") else []


def _not_finite(s: Summary) -> str:
    """NaN and infinities of the inputs, and the NaN scores and results that follow; empty where all
    is finite.
    """
    layer, counts = s.seen.layer, {e.name: int(e.counts["nan"]) for e in s.events}
    given = []
    for name in ("q", "k", "v", "do"):
        a = getattr(layer, name)
        found = (
            {} if a is None else {"NaN": int(np.isnan(a).sum()), "infinite": int(np.isinf(a).sum())}
        )
        given += [f"{n} {what} in {name}" for what, n in found.items() if n]
    then = [
        f"{counts[site]} {what}{'s' * (counts[site] > 1)}"
        for site, what in (("S", "score"), ("OUT", "output"))
        if counts.get(site)
    ]
    if not given and not then:
        return ""
    follow = f"{', '.join(then)} are NaN" if then else "no score or output is NaN"
    return f"{', '.join(given) or 'The inputs are finite'}; {follow}."


def _vanishing(s: Summary) -> str:
    """Events of which more than 1 % underflow to zero."""
    lost = [
        f"{100 * e.share('underflow'):.0f} % of {e.name}"
        for e in s.rounding
        if e.share("underflow") > 0.01
    ]
    return f"{_and(lost)} become 0." if lost else ""


def outward(s: Summary) -> dict[str, Lean]:
    """Of P V, O and OUT, those that lean away from zero or toward it."""
    return {site: x for site, x in s.away.items() if abs(x.z) > s.away_limit}


def _zero(x: Lean) -> str:
    return f"{'away from' if x.mean > 0 else 'toward'} zero by {_mean(x)} ulp"


def _leaning(s: Summary) -> str:
    if not s.rounding:
        return "Nothing rounds: every event of this plan is exact on these tensors."
    if not s.leaning and outward(s):
        zero = "; ".join(f"{_named(s, n)} leans {_zero(x)}" for n, x in outward(s).items())
        return (
            f"Of {len(s.rounding)} events that round, none leans up or down (|z| > {s.limit:.1f});"
            f" {zero}."
        )
    if not s.leaning:
        return (
            f"Nothing leans: of {len(s.rounding)} events that round, none has a mean beyond the"
            f" sign-flip null (|z| > {s.limit:.1f})."
        )
    first = "; ".join(_lean_words(s, e) for e in s.leaning[:4])
    more = f"; and {len(s.leaning) - 4} smaller ones" if len(s.leaning) > 4 else ""
    verb = "leans" if len(s.leaning) == 1 else "lean"
    return f"Of {len(s.rounding)} events that round, {len(s.leaning)} {verb}: {first}{more}."


def _named(s: Summary, name: str) -> str:
    """An event's name, marked if it was injected."""
    return f"{name} (injected)" if any(str(i.site) == name for i in s.seen.request.inject) else name


def _lean_words(s: Summary, e: Event) -> str:
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
        " arguments (their number in brackets); with one coin per argument"
        f" {'it does' if one else 'they do'} not lean."
    )


def _chain(s: Summary) -> str:
    """P V, O and OUT: signed, and away from zero."""
    if not s.away:
        return "P V, O and OUT are exact here." if s.rounding else ""
    leaning = {e.name for e in s.leaning}
    beyond = outward(s)
    quiet = [site for site in s.away if site not in beyond and site not in leaning]
    parts = (
        [f"{_named(s, n)} leans {_zero(x)}." for n, x in beyond.items()] if leaning else []
    )  # else the first sentence says so
    if quiet:
        largest = max((s.away[n] for n in quiet), key=lambda x: abs(x.mean))
        own, verb = ("itself", "does") if len(quiet) == 1 else ("themselves", "do")
        rounding = "The rounding" if len(quiet) == 1 else "The roundings"
        size = f"{largest.mean:+.1g} ± {largest.se:.1g} ulp away from zero"
        most = "at most " if len(quiet) > 1 else ""
        parts.append(
            f"{rounding} at {_and(quiet)} {own} {verb} not lean, neither up nor down nor away from"
            f" zero ({most}{size})."
        )
    return " ".join(parts)


def _results(s: Summary) -> str:
    """Which results are too long or too short, whatever event made them so."""
    parts = [
        f"{n} is too {'long' if g.mean > 0 else 'short'} by {100 * abs(g.mean):.2g} ±"
        f" {100 * g.se:.1g} %"
        for n, g in s.gains.items()
        if g.is_biased
    ]
    if not parts:
        return ""
    return f"Against {s.seen.request.against.name}, {_and(parts)}."


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _delta(s: Summary) -> str:
    if s.drift is None:
        return "The file has no do, so there is no backward and no delta."
    z, head = float(s.drift.z[s.drift.worst]), s.drift.worst[1]
    if not s.drift.error.any():
        return f"delta equals that of {s.seen.request.against.name}."
    against = s.seen.request.against.name
    if s.drift.leans:
        sign = "positive" if z > 0 else "negative"
        return (
            f"The error of delta against {against} adds up along tokens: head {head} ends {sign},"
            f" at {abs(z):.1f} {COINS}."
        )
    return (
        f"The error of delta against {against}, summed over all tokens, does not add up: the"
        f" furthest head, {head}, {_course(s.drift)}ends at {abs(z):.1f} {COINS} (threshold"
        f" {s.drift.limit:.1f})."
    )


def _course(d: DeltaDrift) -> str:
    """The threshold's crossing on the way, if any, of a running sum that ends inside."""
    return (
        ""
        if d.crossing is None
        else f"crosses the threshold at token {d.crossing} but comes back and "
    )


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
