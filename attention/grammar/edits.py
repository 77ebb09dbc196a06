"""What a change can do to a plan: `kinds_of`, a table of kinds of changes for each class of plans,
each with the spelling of its values and its effect.

`apply` changes only what the kind says, and neither the name nor the seeds of the plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from roundscope.attention.grammar.roundings import (
    accumulator_of,
    event_of,
    event_words,
    place_words,
    places_of,
)
from roundscope.attention.plans.choices import Polynomial, Stabilizer
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.errors import unknown
from roundscope.emu.roundings.modes import BINARY32, BINARY64, mode_named
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.events.choice import Choice
from roundscope.events.event import Event, event_to
from roundscope.events.plan import BasePlan
from roundscope.events.sites import SiteBase

Sites = tuple[SiteBase, ...]  # () means all sites that the kind can change
P = TypeVar("P", bound=BasePlan)
WIDE = Accumulator(step=BINARY64)
RESCALES = (Site.DM, Site.ALPHA, Site.AL, Site.AO)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change.

    Args:
        spell: A function from a value in words to its one spelling. It raises ValueError for
            anything that is not a value of the kind.
        apply: A function from a plan, a value and sites to the changed plan.
        per_site: Whether the change can be restricted to sites.
    """

    spell: Callable[[str], str]
    apply: Callable[[Any, str, Sites], Any]
    per_site: bool = False


def apply(plan: P, kind: str, value: str, sites: Sites = ()) -> P:
    """Return the plan with one change.

    Args:
        plan: The plan to change.
        kind: A name of `kinds_of` its class.
        value: The value in words.
        sites: The events or sums that change; () means all.

    Raises:
        ValueError: The value is not one of this kind, or the rest of the plan does not allow it.
    """
    changed: P = kinds_of(type(plan))[kind].apply(plan, value, sites)
    return changed


def _format(plan: P, text: str, sites: Sites) -> P:
    """Return the plan with these events in another format."""
    return plan.rounded(dict.fromkeys(sites or plan.SITES, event_of(text)))


def _mode(plan: P, mode: str, sites: Sites) -> P:
    """Return the plan with another mode at those of these events that round."""
    return plan.rounded(
        {
            site: event_to(plan.event(site), mode)
            for site in sites or plan.SITES
            if not plan[site].is_identity
        }
    )


def _casts(plan: P, mode: str, _: Sites) -> P:
    """Return the plan with another mode at its casts: the events after its inputs that round to
    fewer bits than binary32.
    """
    return plan.rounded(
        {
            site: event_to(plan.event(site), mode)
            for site in plan.SITES
            if site.stage != "inputs" and plan[site].format.precision < BINARY32.format.precision
        }
    )


def _accumulator(plan: P, text: str, sites: Sites) -> P:
    """Return the plan with these sums added up by another accumulator."""
    new = accumulator_of(text)
    return replace(
        plan,
        accumulators=tuple(
            new if s in (sites or plan.PRODUCTS) else plan.accumulator(s) for s in plan.PRODUCTS
        ),
    )


def _stabilizer(beta: str) -> Stabilizer | None:
    """Return the shifted maximum of factor beta, or None."""
    beta = stabilizer_words(beta)
    return None if beta == "none" else Stabilizer(beta=float(beta))


def stabilizer_words(value: str | float) -> str:
    """Return none, or the shortest text of beta, so that 2, 2.0 and "2" are the same condition.

    Raises:
        ValueError: The value is neither none nor a finite number above 1.
    """
    if value == "none":
        return "none"
    try:
        beta = math.nan if isinstance(value, bool) else float(value)
    except ValueError:
        beta = math.nan
    if not 1.0 < beta < math.inf:
        raise ValueError(
            "give none, or the factor beta of the shift, a number above 1 (the paper uses 2 to 8)"
        )
    return repr(beta).removesuffix(".0")


def _unfused(plan: Plan, value: str, _: Sites) -> Plan:
    """Return the plan with a softmax of whole rows and then P V as an event of its own."""
    return (
        replace(plan, normalise_first=True, pv_into_o=False)
        if truth_words(value) == "true"
        else plan
    )


def truth_words(value: str) -> str:
    """Return true or false in lower case. Raises ValueError for anything else."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return str(value).lower()


def count_words(value: str) -> str:
    """Return a whole number, 0 or more, as text. Raises ValueError for anything else."""
    if not str(value).isdecimal() or len(str(value)) > 9:
        raise ValueError("give a whole number, 0 or more, of up to 9 digits")
    return str(int(value))


def power_words(value: str) -> str:
    """Return a finite number, 0 or more, as text. Raises ValueError for anything else."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < math.inf:
        raise ValueError("give a number, 0 or more")
    return f"{number:g}"


def _only(plan: P, text: str, _: Sites) -> P:
    """Return the plan in binary64 everywhere except at the events and steps named."""
    kept = places_of(text, type(plan))
    return _widened(plan, lambda site, step: (site, step) not in kept)


def _but(plan: P, text: str, _: Sites) -> P:
    """Return the plan with the events and steps named in binary64."""
    wide = places_of(text, type(plan))
    return _widened(plan, lambda site, step: (site, step) in wide)


def _widened(plan: P, is_wide: Callable[[SiteBase, bool], bool]) -> P:
    """Return the plan with some events and steps of sums in binary64.

    Such a sum is in ascending order, as in the plan `exact`, since some orders have no binary64
    steps.

    Args:
        plan: The plan to change.
        is_wide: A function of a site and a bool, which is True for the steps of the site's sum and
            False for its event. It returns whether these become binary64.
    """
    wide: dict[SiteBase, Event] = {site: BINARY64 for site in plan.SITES if is_wide(site, False)}
    sums = tuple(WIDE if is_wide(site, True) else plan.accumulator(site) for site in plan.PRODUCTS)
    return replace(plan.rounded(wide), accumulators=sums)


def _checked(build: Callable[[str], object]) -> Callable[[str], str]:
    """Return a function that returns its text unchanged, but raises what `build` raises for it."""

    def spell(text: str) -> str:
        build(text)
        return text

    return spell


def _of_field(own: Choice) -> Kind:
    """Return the kind that sets a field of a plan to a value in words."""

    def spell(name: str) -> str:
        name = SPELLINGS.get((own.name, name), name)
        if name not in own.words:
            raise ValueError(unknown(own.called, name, own.words))
        return name

    spelled, read = READ.get(own.kind, (spell, lambda text: own.kind(spell(text))))
    return Kind(spelled, lambda plan, text, _: replace(plan, **{own.name: read(text)}))


# other spellings of a value: (field, spelling) -> the value
SPELLINGS = {("delta_from", "CENTERED"): "CENTRED"}
# how the words of a field are spelled and read, by its type; those of an enumeration are its values
READ: dict[object, tuple[Callable[[str], str], Callable[[str], Any]]] = {
    bool: (truth_words, lambda text: truth_words(text) == "true"),
    int: (count_words, lambda text: int(count_words(text))),
    float: (power_words, lambda text: float(power_words(text))),
    Polynomial | None: (lambda text: str(Polynomial.parse(str(text)) or "none"), Polynomial.parse),
    Stabilizer | None: (stabilizer_words, _stabilizer),
}


OF_ATTENTION = {
    "plan": Kind(_checked(Plan.preset), lambda _, name, __: Plan.preset(name)),
    "unfused": Kind(truth_words, _unfused),
}


def kinds_of(of: type[BasePlan]) -> dict[str, Kind]:
    """Return the kinds of changes of a class of plans by name, in the order in which a sweep
    applies them.
    """
    own: Any = of
    return _kinds(own)


@cache
def _kinds(of: Any) -> dict[str, Kind]:

    def spelled(text: str) -> str:
        return place_words(places_of(text, of))

    return {
        **(OF_ATTENTION if of is Plan else {}),
        "format": Kind(event_words, _format, per_site=True),
        "mode": Kind(lambda text: str(mode_named(text)), _mode, per_site=True),
        "casts": Kind(lambda text: str(mode_named(text)), _casts),
        "accumulator": Kind(_checked(accumulator_of), _accumulator, per_site=True),
        **{name: _of_field(own) for name, own in of.choices().items() if own.words},
        "only": Kind(spelled, _only),
        "but": Kind(spelled, _but),
    }


KINDS = kinds_of(Plan)
"""The kinds of changes of plans of attention."""
