"""The verdict on a proxy's run: what is shown, link by link, each with its evidence."""

from roundscope.experiments.diagnose.student.blocks import Blocks
from roundscope.experiments.diagnose.student.errors import GRADIENT, Error
from roundscope.experiments.diagnose.student.repairs import BASE, FOUND, RANDOM, Tried
from roundscope.experiments.diagnose.student.run import ALL, REST, SET, Found
from roundscope.tools.diagnose.replay.start import LEVEL
from roundscope.tools.diagnose.report import words_run
from roundscope.tools.diagnose.tensors.verdict import Link


def links(found: Found) -> list[Link]:
    """Return the links in the order of the steps; a step that was not reached has none."""
    chain = words_run.links(found.replayed)
    if found.guilty and SET in found.errors:
        chain.append(_share(found))
    if found.errors:
        chain.append(_adds_up(found))
    if found.origin:
        chain.append(_origin(found))
    if found.tried:
        chain.append(_repair(found))
    return chain


def subject(found: Found) -> Error:
    """Return the error whose bias is at issue: of the set of step 2, else of all events."""
    return found.errors.get(SET, found.errors[ALL])


def _share(found: Found) -> Link:
    own, rest, every = (float(found.errors[n].zeta.mean()) for n in (SET, REST, ALL))
    evidence = (
        f"zeta {own:.3g} with the set alone rounded, {rest:.3g} with all but it, {every:.3g} with"
        " all events"
    )
    return Link(name="error", holds=own > rest, evidence=evidence)


def _adds_up(found: Found) -> Link:
    e, g = subject(found), found.errors[GRADIENT]
    whose = "the set's error" if SET in found.errors else "the error of all events"
    mean, half = e.bias
    evidence = (
        f"over {e.zeta.size} steps {whose} is {e.a:.2f} times what random directions give (flips:"
        f" below {e.null:.2f}, p = {e.p:.1g}; the gradient itself: {g.a:.2f}); along the gradient"
        f" {100 * mean:+.2g} % of it, +- {100 * half:.2g}"
    )
    return Link(name="coherence", holds=e.p < LEVEL, evidence=evidence)


def looked(found: Found) -> list[Blocks]:
    """Return the blocks of the set of step 2, or of all events without one."""
    return [b for b in found.origin if b.marked] or list(found.origin)


def _origin(found: Found) -> Link:
    worst = max(looked(found), key=lambda b: -b.shares["shrink"])
    s, normal = worst.shares, worst.normal_shares
    name = f"{worst.units[0].site} ({worst.format})"
    evidence = (
        f"the largest loss of magnitude: {name}, {100 * -s['shrink']:.2g} % (normal numbers:"
        f" {100 * -normal['shrink']:.2g} %); {100 * s['clipped']:.2g} % clipped"
        f" ({100 * normal['clipped']:.2g} %), {100 * s['underflow']:.2g} % become 0"
        f" ({100 * normal['underflow']:.2g} %), {100 * s['excess']:.0f} % of the error would not be"
        f" there under RCEIL ({100 * normal['excess']:.0f} %), {s['distinct']:.1f} different"
        f" elements in a block ({normal['distinct']:.1f})"
    )
    return Link(
        name="blocks unlike normal numbers",
        holds=-s["shrink"] > 2.0 * -normal["shrink"] > 0.0,
        evidence=evidence,
    )


def _repair(found: Found) -> Link:
    real = [t for t in found.tried if t.name not in (BASE, FOUND, RANDOM)]
    good, open_ = ([t for t in real if t.word == word] for word in ("averts it", "undecided"))

    def said(own: list[Tried]) -> str:
        return ", ".join(f"{t.name} ({t.outcome.count})" for t in own) or "none"

    evidence = (
        f"averted by: {said(good)}; undecided: {said(open_)}; shams: {found.tried[0].outcome.count}"
    )
    return Link(name="repair", holds=bool(good), evidence=evidence)
