"""Sentences of a proxy's diagnosis: the verdict, the answers of the steps, what was not shown."""

from roundscope.experiments.diagnose.student.errors import GRADIENT
from roundscope.experiments.diagnose.student.repairs import BASE, FOUND, RANDOM
from roundscope.experiments.diagnose.student.run import ALL, SET, Found
from roundscope.experiments.diagnose.student.units import words
from roundscope.experiments.diagnose.student.verdict import links
from roundscope.experiments.train.mx import Site
from roundscope.tools.diagnose.replay.start import Cause
from roundscope.tools.diagnose.report import words_run


def kind(found: Found) -> str:
    """Return the verdict in a few words."""
    r = found.replayed
    if r.cause is not Cause.ROUNDING:
        return r.verdict
    fault = "a set of events is" if r.holds else "no set of events is shown to be"
    return f"{r.verdict}; {fault} at fault"


def who(found: Found) -> str:
    """Return the run, in words."""
    own = found.case.own
    return f"{own.name}, seed {own.seed}, lr {own.lr:g}"


def headline(found: Found) -> str:
    """Return the verdict in a few sentences."""
    r, twin = found.replayed, found.case.twin
    beside = ""
    if twin is not None:
        too = " not" if twin.diverged is None else f" too, at {twin.diverged}"
        beside = f" FP32 on the same rows does{too}."
    start = f"{who(found)}: diverges at step {found.case.failed}.{beside} {words_run.ending(r)}"
    if not r.holds:
        return start
    good = [
        t.name for t in found.tried if t.word == "averts it" and t.name not in (BASE, FOUND, RANDOM)
    ]
    return start + (
        f" Repairs that avert it: {', '.join(good)}."
        if good
        else " None of the repairs tried is shown to avert it."
    )


def error(found: Found) -> str:
    """Return the sentence of step 3."""
    if not found.errors:
        return "Which event makes the gradient's error? No event rounds."
    single = {n: e for n, e in found.errors.items() if n in list(Site)}
    most = sorted(single, key=lambda n: -float(single[n].zeta.mean()))[:3]
    own = ", ".join(f"{n} {single[n].zeta.mean():.3g}" for n in most)
    e, by_name = found.errors[ALL], {x.name: x.evidence for x in links(found)}
    share = f" {by_name['error'][0].upper()}{by_name['error'][1:]}." if "error" in by_name else ""
    return (
        "Which event makes the gradient's error, and does it add up? |epsilon| / |g| is"
        f" {e.zeta.mean():.3g}, cosine {e.cosine.mean():.4f}, with all events; alone, most have"
        f" {own}.{share} {_coherent(found)}"
    )


def _coherent(found: Found) -> str:
    e = found.errors.get(SET, found.errors[ALL])
    text = next(x.evidence for x in links(found) if x.name == "coherence")
    more = (
        "" if e.a >= found.errors[GRADIENT].a else " It adds up less than the gradient itself does."
    )
    return f"{text[0].upper()}{text[1:]}.{more}"


def origin(found: Found) -> str:
    """Return the sentence of step 4."""
    if not found.origin:
        return "What do the blocks look like? No operand rounds in blocks."
    text = next(x.evidence for x in links(found) if x.name.startswith("blocks"))
    whose = "the set of step 2" if any(b.marked for b in found.origin) else "all operands"
    return (
        f"What do the blocks of {whose} look like? In brackets: normal numbers in the same format."
        f" {text[0].upper()}{text[1:]}."
    )


def repaired(found: Found) -> str:
    """Return the sentence of step 5."""
    if not found.tried:
        return f"Which repair averts it? Not tried: {found.replayed.verdict}."
    text = next(x.evidence for x in links(found) if x.name == "repair")
    return f"Which repair averts it? {text[0].upper()}{text[1:]}."


def not_shown(found: Found) -> list[str]:
    """Return what this diagnosis leaves open."""
    start, (first, last) = found.replayed.replayer.first, found.steps
    until = found.replayed.replayer.until
    later = (
        f"What comes after step {until} (--until): 'survives' means up to there, from step {start}"
        " (--from)."
    )
    seeds = (
        "Other seeds and rows: one run was examined. No part of the set can be left out; a smaller"
        " set of other events may exist."
    )
    steps = (
        f"Other steps: steps 3 and 4 examine steps {first} to {last} of the run as it was;"
        " gradients under a repair are at those weights too."
    )
    repairs = (
        "Repairs from the start: a replay begins with a repair in the middle of the run; trained"
        " with it from the start, the run may differ."
    )
    lines = [later, seeds, steps, repairs]
    blocked = frozenset(u for b in found.origin for u in b.units)
    if rest := found.guilty - blocked:
        lines.append(
            f"What {words(rest, found.replayed.units)} look like: they do not round in blocks, or"
            " are no operands; step 4 shows operands in blocks."
        )
    return lines
