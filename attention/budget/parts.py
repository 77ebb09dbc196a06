"""The parts of an error budget: what can be taken out of a plan, or left in it alone.

A part is one event, the additions inside one sum, or several of these that are small together.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from roundscope.attention.grammar.edits import apply
from roundscope.attention.grammar.roundings import accumulator_words, place_words, spelled
from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import BINARY32, Rounding, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.event import Event
from roundscope.events.plan import BasePlan

P = TypeVar("P", bound=BasePlan)
DIRECTED = (RoundingMode.TOWARD_ZERO, RoundingMode.TOWARD_POSITIVE, RoundingMode.TOWARD_NEGATIVE)
Place = tuple[Any, bool]  # a site, and whether the additions inside its sum are meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a line of a budget is about.

    Attributes:
        name: The event ("P"), the sum ("PV.step", as in traces), or what is taken together.
        places: The events and sums that belong to it; () for the injections of the call.
        how: How these round: a format in the words of docs/reference/grammar.md, or an accumulator.
        formula: What the event is, in the names of `Site.formula`.
    """

    name: str
    places: tuple[Place, ...]
    how: str
    formula: str


INJECTED = Part(name="injected", places=(), how="-", formula="the errors given by inject")


def event_part(plan: BasePlan, site: Any) -> Part:
    """Return the part of one event."""
    return Part(
        name=str(site), places=((site, False),), how=_rounding(plan, site), formula=site.formula
    )


def _rounding(plan: BasePlan, site: Any) -> str:
    """Return how a site rounds, in few words: without an overflow that its format has anyway."""
    event = plan.event(site)
    if not isinstance(event, Rounding):
        name = str(event)
        return name if name in BLOCK_NAMED else f"{event.element.format.name} in blocks"
    is_usual = event.format.bits <= 8  # FP8, FP6 and FP4 saturate unless told otherwise
    return str(event).removesuffix(":saturate") if is_usual else str(event)


def sum_part(plan: BasePlan, site: Any) -> Part:
    """Return the part of the additions inside one sum of products."""
    return Part(
        name=f"{site}.step",
        places=((site, True),),
        how=accumulator_words(plan.accumulator(site)).removeprefix("tensor-core:"),
        formula=f"additions of {site.formula}",
    )


def together(parts: list[Part], what: str) -> Part:
    """Return several parts as one; what: a word for them, such as "events"."""
    ways = list(dict.fromkeys(p.how for p in parts))
    return Part(
        name=f"{len(parts)} {what}",
        places=tuple(place for p in parts for place in p.places),
        how=ways[0] if len(ways) == 1 else "several",
        formula=" ".join(p.name for p in parts),
    )


def rounding_parts(plan: BasePlan, inexact: Container[str], backward: bool) -> list[Part]:
    """Return a part for each event and each sum of a plan that rounds, in the algorithm's order.

    Args:
        plan: The plan.
        inexact: The names of the events that changed a number in the call: others have no part.
        backward: Whether the call had a backward.
    """
    parts = []
    for site in plan.SITES:
        if site.stage == "backward" and not backward:
            continue
        if str(site) in inexact and not plan[site].is_identity:
            parts.append(event_part(plan, site))
        if site in plan.PRODUCTS and _rounds_inside(plan.accumulator(site)):
            parts.append(sum_part(plan, site))
    return parts


def is_narrow(plan: BasePlan, part: Part) -> bool:
    """Return whether some of a part rounds to fewer bits than binary32 has."""
    return any(
        (plan.accumulator(site).step if step else plan[site]).format.precision
        < BINARY32.format.precision
        for site, step in part.places
    )


def _rounds_inside(accumulator: Accumulator) -> bool:
    return accumulator.order is Order.NATIVE or not accumulator.step.is_identity


def on_tensor_core(plan: BasePlan, part: Part) -> bool:
    """Return whether a part has the additions of a tensor core, which reads narrow operands only.

    Such a sum cannot run where its operands are exact, so it has no error alone.
    """
    return any(step and plan.accumulator(site).alignment is not None for site, step in part.places)


def alone(plan: P, part: Part) -> P:
    """Return the plan in which only a part rounds, and all else is in binary64."""
    return apply(plan, "only", place_words(part.places)) if part.places else exactly(plan)


def without(plan: P, part: Part) -> P:
    """Return the plan in which a part is in binary64.

    A tensor core that would read an operand in binary64 is replaced by ascending sums in binary32,
    as the operand's promotion would need.
    """
    if not part.places:
        return plan
    wide = {site for site, step in part.places if not step}
    for site in plan.PRODUCTS:
        if plan.accumulator(site).alignment is not None and wide.intersection(plan.factors(site)):
            plan = plan.adding(site, Accumulator())
    return apply(plan, "but", place_words(part.places))


def exactly(plan: P) -> P:
    """Return the plan with every event and every sum in binary64.

    What it computes otherwise, such as exp by an instruction of a GPU, stays.
    """
    places = [(site, False) for site in plan.SITES] + [(site, True) for site in plan.PRODUCTS]
    return apply(plan, "but", place_words(tuple(places)))


def repair(plan: BasePlan, part: Part) -> list[str]:
    """Return the changes that round an event of a part without a bias, to as many bits as before.

    A directed rounding becomes one to nearest, and a scale rule that clips the largest numbers of a
    block becomes RCEIL, wherever the plan has this block format. The list is empty if the part has
    neither.
    """
    words = []
    for site, step in part.places:
        event = plan.event(site)
        if not step and (better := _unbiased(event)) != event:
            alike = [
                x
                for x in plan.SITES
                if x is site or (isinstance(event, BlockFormat) and plan.event(x) == event)
            ]
            words += [f"{x}={spelled(better)}" for x in alike]
    return list(dict.fromkeys(words))


def _unbiased(event: Event) -> Event:
    """Return an event that rounds to nearest, in blocks with a scale that clips no number."""
    if isinstance(event, Rounding):
        return replace(event, mode=RoundingMode.TIES_TO_EVEN) if event.mode in DIRECTED else event
    element = _unbiased(event.element)
    assert isinstance(element, Rounding)
    rule = ScaleRule.RCEIL if event.rule is ScaleRule.FLOOR else event.rule
    return replace(event, element=element, rule=rule)


def promotion(plan: BasePlan, part: Part) -> list[str]:
    """Return the changes, in the words of docs/reference/grammar.md, that put a part in binary32.

    With an operand of a tensor core, its product becomes an ascending sum in binary32. Events that
    are in binary32 go to binary64, and so do sums.
    """
    wide = {site for site, step in part.places if not step}
    to = "fp32" if is_narrow(plan, part) else "fp64"
    words = [f"{site}={to}" for site in plan.SITES if site in wide]
    words += [
        f"{site}.sum=ascending"
        for site in plan.PRODUCTS
        if plan.accumulator(site).alignment is not None and wide.intersection(plan.factors(site))
    ]
    steps = [site for site, step in part.places if step]
    return words + [f"{site}.sum=ascending:fp64" for site in steps]
