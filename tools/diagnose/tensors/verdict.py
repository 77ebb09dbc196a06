"""The verdict: the links of the chain of arXiv 2510.04212, each tested by a rule, with evidence.

    direction   the atoms' mean cosine is above 99 % of those with flipped signs
    coherence   some head's p is below 0.01 / number of heads
    origin      a rounding between P V and the output is biased by itself (p < 0.01), with delta's
                sign and >= 1/10 of the bias
    P = 1       at least half of that rounding's part comes from rows of a key tile with several
                P = 1
    sticky      at least half of it comes from ties that sticky bits broke
    repair      some repair that is exact in binary64 removes it: the 95 % interval of what remains
                lies inside a tenth of the bias before, or inside half of it and p >= 0.01
    sham        a change of the output as large, of random sign, leaves it: still p < 0.01, its
                paired change not significantly different from 0

Without coherence the verdict is `nothing seen`, with the smallest bias that would have been; with
all links it is `the chain`; else a bias of another kind.
"""

from dataclasses import dataclass
from enum import StrEnum

from roundscope.tools.diagnose.tensors.carrier import Carrier
from roundscope.tools.diagnose.tensors.coherence import Coherence
from roundscope.tools.diagnose.tensors.origin import BIASED, CLASSES, STICKY, Origin
from roundscope.tools.diagnose.tensors.repairs import INVARIANT, Outcome


class Kind(StrEnum):
    """What the diagnosis found."""

    NOTHING = "nothing seen"
    CHAIN = "the chain"
    OTHER = "a bias of another kind than in arXiv 2510.04212"


class Effect(StrEnum):
    """What an arm did to the bias."""

    REMOVED = "removed"
    REDUCED = "reduced"
    LEFT = "left"
    GREW = "grew"
    TURNED = "turned round"
    UNCLEAR = "not decided, too noisy"
    NONE = "no bias to remove"
    MADE = "makes a bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of the chain: whether it holds, and the evidence in words."""

    name: str
    holds: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The kind of verdict, and its links in order (for `nothing seen`: coherence alone)."""

    kind: Kind
    links: list[Link]

    @property
    def missing(self) -> list[str]:
        """The links that do not hold."""
        return [x.name for x in self.links if not x.holds]


def effect(outcome: Outcome, before: Outcome, *, biased: bool) -> Effect:
    """Return what an arm did; biased: whether there was a bias to remove."""
    after, mean = outcome.after, before.after.mean
    still_biased = after.p < BIASED
    if not biased:
        new = after.p < BIASED / 10 and abs(after.mean) > before.after.high - mean
        return Effect.MADE if new else Effect.NONE
    remains = max(abs(after.low), abs(after.high)) / abs(mean)
    if remains < 0.1 or not still_biased:
        return Effect.REMOVED if remains < 0.5 else Effect.UNCLEAR
    if after.mean * mean < 0.0:
        return Effect.TURNED
    if outcome.moved[0] <= 0.0 <= outcome.moved[1]:
        return Effect.LEFT
    return Effect.REDUCED if abs(after.mean) < abs(mean) else Effect.GREW


def verdict(
    carried: Carrier, head: int, c: Coherence, origin: Origin, base: Outcome, tried: list[Outcome]
) -> Verdict:
    """Return the verdict at the head of steps 5 and 6."""
    biased = bool(c.p[head] < c.level)
    if not biased:  # a common direction says nothing where no sum has a bias to carry
        return Verdict(kind=Kind.NOTHING, links=[_coherence(c, head, biased)])
    links = [_direction(carried, head), _coherence(c, head, biased)]
    links += [_origin(origin), _ones(origin), _sticky(origin)]
    links += [_repair(base, tried), _sham(base, tried)]
    return Verdict(kind=Kind.CHAIN if all(x.holds for x in links) else Kind.OTHER, links=links)


def _direction(x: Carrier, head: int) -> Link:
    evidence = (
        f"atoms of any two tokens have a mean cosine of {x.atoms[head]:+.3f} (P K"
        f" {x.pk[head]:+.2f}, q {x.q[head]:+.2f}); with flipped signs 99 % stay below"
        f" {x.flipped_atoms[head]:+.3f}"
    )
    return Link(name="direction", holds=x.common(head), evidence=evidence)


def _coherence(c: Coherence, head: int, biased: bool) -> Link:
    evidence = (
        f"the sum over tokens is {c.a[head]:.1f} times what random signs give, p = {c.p[head]:.1g}"
        f" (level {c.level:.1g})"
    )
    return Link(name="coherence", holds=biased, evidence=evidence)


def _origin(o: Origin) -> Link:
    parts = (
        ", ".join(f"{n} {100 * o.share(n):.0f} %" for n in o.origins)
        or "none is biased by itself with a tenth of the bias"
    )
    return Link(name="origin", holds=o.site is not None, evidence=f"parts of the bias: {parts}")


def _ones(o: Origin) -> Link:
    if o.site is None:
        return Link(name="P = 1", holds=False, evidence="no rounding of the output is an origin")
    s = o.site
    of = s.ones_events.sum() / max(s.events.sum(), 1)
    evidence = (
        f"{100 * s.share_of_ones:.0f} % of {s.site}'s part comes from the {100 * of:.0f} % of its"
        " events where a row has several P = 1"
    )
    evidence += "; there are no others to compare with" if of > 0.995 else ""
    return Link(name="P = 1", holds=s.share_of_ones >= 0.5, evidence=evidence)


def _sticky(o: Origin) -> Link:
    if o.site is None:
        return Link(name="sticky", holds=False, evidence="no rounding of the output is an origin")
    if not o.site.to_nearest:
        evidence = f"{o.site.site} does not round to nearest: no rule for ties acts in it"
        return Link(name="sticky", holds=False, evidence=evidence)
    share = o.site.share_of(CLASSES[STICKY])
    of = o.site.events[STICKY] / max(o.site.events.sum(), 1)
    opposite = " (other classes have the opposite sign)" if share > 1.005 else ""
    evidence = (
        f"ties that sticky bits broke, {100 * of:.0f} % of {o.site.site}'s events, make"
        f" {100 * share:.0f} % of its part{opposite}"
    )
    return Link(name="sticky", holds=share >= 0.5, evidence=evidence)


def _repair(base: Outcome, outcomes: list[Outcome]) -> Link:
    real = [(o, effect(o, base, biased=True)) for o in outcomes if not o.arm.is_sham]
    done = [o.arm.name for o, did in real if o.is_invariant and did is Effect.REMOVED]
    others = [f"; {o.arm.name}: {did}" for o, did in real if o.arm.name not in done]
    evidence = (
        f"removed by {', '.join(done) or 'none'} (each changes the exact result by less than"
        f" {INVARIANT:.0e}){''.join(others)}"
    )
    return Link(name="repair", holds=bool(done), evidence=evidence)


def _sham(base: Outcome, outcomes: list[Outcome]) -> Link:
    found = [o for o in outcomes if o.arm.is_sham]
    if not found:
        evidence = "nothing rounds on the way to the output, so there is nothing to imitate"
        return Link(name="sham", holds=False, evidence=evidence)
    did = effect(found[0], base, biased=True)
    ratio = found[0].after.mean / base.after.mean if base.after.mean else 0.0
    evidence = (
        f"changing the output as much, with random signs: {did}, {100 * ratio:.0f} % of the bias"
        " remains"
    )
    return Link(name="sham", holds=did is Effect.LEFT, evidence=evidence)
