"""Sentences of steps 1 and 2 of any run.

They say what its replays show, which set must be exact, and the evidence for it.
"""

import numpy as np

from roundscope.tools.diagnose.replay.replayer import Outcome
from roundscope.tools.diagnose.replay.start import Cause, Replayed
from roundscope.tools.diagnose.search import Guilty
from roundscope.tools.diagnose.tensors.verdict import Link

SHAM = (
    "A sham is the run as it was from the same state, its weights changed by a millionth of their"
    " size at random: it should fail, and a changed run that survives shows something only where"
    " shams do not. p is Fisher's exact test, one-sided. An exact event is one in FP32."
)


def first_line(r: Replayed) -> str:
    """Return the events, the evidence with counts, and the repair as a command."""
    if not r.sanity or r.cause is Cause.LOST:
        return r.verdict
    last = r.sanity[-1]
    if r.cause is Cause.ROUNDING and r.guilty is not None and r.guilty.confirmed is not None:
        g, kept = r.guilty, r.guilty.confirmed.count
        counts = f"exact, {kept} replays survive, as it was {r.shams.count} (p = {r.p:.1g})"
        if not r.holds:
            best = f"the best is {_words(g)}: {counts}"
            return f"{r.verdict}; no small set is shown to be at fault; {best}"
        repair = r.model.repair(g.found, r.replayer.first)
        return f"{r.verdict}; {_words(g)} {_is(g)} at fault: {counts}. Repair: {repair}"
    counts = f"as it was {last.low.count} replays survive, with everything exact {last.exact.count}"
    return f"{r.verdict}; from step {last.first} to {last.until} {counts}"


def _words(g: Guilty) -> str:
    return g.words(g.found)


def _is(g: Guilty) -> str:
    return "is" if len({u.site for u in g.found}) == 1 else "are"


def ending(r: Replayed) -> str:
    """Return what the replays say, for the verdict."""
    event, others = f"event{r.model.place.replace(' in', ' of')}", r.model.others
    if r.cause is Cause.LOST:
        why = "the log was written by another version, or on another device"
        return f"Replayed, it does not fail: {why}."
    if not r.units:
        few = f"No {event} rounds to fewer bits than FP32"
        return f"{few}, so rounding there is not the cause. {others}"
    if r.cause is Cause.OTHER:
        return (
            f"It fails with every {event} exact too: {_tried(r)}. The cause is not"
            f" rounding{r.model.place} from there on, or the damage is done before. {others}"
        )
    if r.cause is Cause.UNDECIDED:
        return (
            f"Whether it is rounding is not decided: {_tried(r)}. A replay fails by {r.model.rule}."
            " Other seeds may tell."
        )
    return found(r)


def _tried(r: Replayed) -> str:
    """Return every state and window that was tried, with counts."""
    return "; ".join(
        f"from step {s.first} to {s.until}, {s.low.failures} of {len(s.low.fates)} replays with"
        f" other last bits fail as it was and {s.exact.failures} of {len(s.exact.fates)} with"
        " everything exact"
        for s in r.sanity
    )


def found(r: Replayed) -> str:
    """Return what was found, for the verdict."""
    g = r.guilty
    assert g is not None and g.confirmed is not None
    counts = f"{g.confirmed.count} replays, against {r.shams.count} as it was (p = {r.p:.1g})"
    if not r.holds:
        return (
            f"It is rounding, but no small set is shown: with the best, {_words(g)} exact, it"
            f" survives in {counts}."
        )
    return (
        f"It survives if {_words(g)} {_is(g)} exact, {size(g)}: {counts}. Low alone, with all else"
        f" exact, it survives in {g.only.count}. {_others(g)}"
    ).rstrip()


def size(g: Guilty) -> str:
    """Return the number of events of the set and of all, in words."""
    return f"{g.size} of {g.of} events"


def replayed(r: Replayed) -> str:
    """Return the sentence of step 1."""
    own, *rest = links(r)
    more = f" {_capital(rest[0].evidence)}." if rest else ""
    return f"Does the failure come again, and is it rounding? It was replayed {own.evidence}.{more}"


def searched(r: Replayed | None, why: str = "") -> str:
    """Return the sentence of step 2."""
    if r is None or r.guilty is None:
        return f"Which roundings must be exact? Not searched: {why if r is None else r.verdict}."
    g = r.guilty
    by_name = {x.name: x.evidence for x in links(r)}
    times = "each once" if g.repeats == 1 else f"each {g.repeats} times, and all must survive"
    return (
        f"Which roundings must be exact? {by_name['set']}. {_capital(by_name['controls'])}. Low"
        f" alone, all else exact, {g.only.count} replays survive{at(g.only)}."
        f" {_others(g)}{_turns(g)}{len(g.outcomes)} sets, {times}; {r.arm_steps:,} steps of arms."
    )


def links(r: Replayed) -> list[Link]:
    """Return steps 1 and 2, as far as they were reached, as links with their evidence."""
    chain = [_again(r)]
    if r.sanity:
        chain.append(Link(name="rounding", holds=r.cause is Cause.ROUNDING, evidence=_tried(r)))
    if r.guilty is not None:
        chain += [_set(r, r.guilty), _controls(r.guilty)]
    return chain


def _again(r: Replayed) -> Link:
    same = "twice with the same bits" if r.own.again else "twice, with DIFFERENT bits"
    where = ""
    if not r.model.same_device:
        where = f", which was written on another device, {r.case.about['device']}"
    bits = f"{r.equal} of {r.compared} numbers of the log have its bits{where}"
    when = "it does not fail"
    if r.failed is not None:
        when = f"it fails at step {r.failed}, by {r.model.rule}"
    holds, evidence = r.failed is not None, f"from step {r.own.first}, {same}; {bits}; {when}"
    return Link(name="replay", holds=r.own.again and holds, evidence=evidence)


def _set(r: Replayed, g: Guilty) -> Link:
    assert g.confirmed is not None
    counts = f"{g.confirmed.count} replays survive, and {r.shams.count} as it was"
    evidence = f"{_words(g)} exact, {size(g)}: {counts} (p = {r.p:.1g}, Fisher)"
    return Link(name="set", holds=r.holds, evidence=evidence)


def _controls(g: Guilty) -> Link:
    alive = sum(o.survives for o in g.controls)
    minimal = "each part put back alone makes it fail again"
    if not g.is_minimal:
        needless = ", ".join(n for n, o in g.without if o.survives)
        minimal = f"without {needless} it survives too: the set is not minimal"
    random = f"{alive} of {len(g.controls)} random sets of the same size survive"
    if not g.controls:
        random = "there is no other set of this size to compare with"
    holds = 2 * alive < len(g.controls) and g.is_minimal
    return Link(name="controls", holds=holds, evidence=f"{random}; {minimal}")


def _others(g: Guilty) -> str:
    if not g.elsewhere:
        return ""
    shown = "; or ".join(f"{g.words(o.units)} ({o.count})" for o in g.elsewhere[:3])
    many, which = "another set", ""
    if len(g.elsewhere) > 1:
        many, which = f"{len(g.elsewhere)} other sets", "the smallest: "
    return f"It is not the only one: with {many} exact it survives too, {which}{shown}. "


def _turns(g: Guilty) -> str:
    if not g.turns:
        return ""
    pairs = f"{len(g.turns)} pairs of sets the one that survives lies inside one that fails"
    return f"More exact is not always better: in {pairs}. "


def at(outcome: Outcome) -> str:
    """Return when replays failed, for a sentence; an empty text if none did."""
    steps = [f.failed for f in outcome.fates if f.failed is not None]
    return f" (others fail at step {int(np.median(steps))})" if steps else ""


def outcome_words(o: Outcome) -> str:
    """Return an outcome for a table."""
    if len(o.fates) > 1:
        return f"{o.count} survive"
    return "survives" if o.survives else f"fails at {o.fates[0].failed}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
