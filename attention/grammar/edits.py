"""What a change can do to a plan: `KINDS`, a table of kinds of changes, each with the spelling of
its values and its effect.

`apply` changes only what the kind says, and neither the name nor the seeds of the plan.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from roundscope.attention.grammar.roundings import (
    accumulator_of,
    event_of,
    event_words,
    place_words,
    places_of,
)
from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    DeltaFrom,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    Logarithm,
    Polynomial,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
    Stabilizer,
    Tanh,
)
from roundscope.attention.plans.plan import Event, Plan, event_to
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.errors import unknown
from roundscope.emu.roundings.modes import BINARY64, mode_named
from roundscope.emu.sums.accumulator import Accumulator

Sites = tuple[Site, ...]  # () means all sites that the kind can change
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
    apply: Callable[[Plan, str, Sites], Plan]
    per_site: bool = False


def apply(plan: Plan, kind: str, value: str, sites: Sites = ()) -> Plan:
    """Return the plan with one change.

    Args:
        plan: The plan to change.
        kind: A name of `KINDS`.
        value: The value in words.
        sites: The events or sums that change; () means all.

    Raises:
        ValueError: The value is not one of this kind, or the rest of the plan does not allow it.
    """
    return KINDS[kind].apply(plan, value, sites)


def _format(plan: Plan, text: str, sites: Sites) -> Plan:
    """Return the plan with these events in another format."""
    return plan.rounded(dict.fromkeys(sites or Site, event_of(text)))


def _mode(plan: Plan, mode: str, sites: Sites) -> Plan:
    """Return the plan with another mode at those of these events that round."""
    return plan.rounded(
        {
            site: event_to(plan.event(site), mode)
            for site in sites or Site
            if not plan[site].is_identity
        }
    )


def _accumulator(plan: Plan, text: str, sites: Sites) -> Plan:
    """Return the plan with these sums added up by another accumulator."""
    new = accumulator_of(text)
    return replace(
        plan,
        accumulators=tuple(
            new if s in (sites or PRODUCTS) else plan.accumulator(s) for s in PRODUCTS
        ),
    )


def _stabilizer(plan: Plan, beta: str, _: Sites) -> Plan:
    """Return the plan with the shifted maximum of factor beta, or with none."""
    beta = stabilizer_words(beta)
    return replace(plan, stabiliser=None if beta == "none" else Stabilizer(beta=float(beta)))


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


def polynomial_words(value: str) -> str:
    """Return none or EVERY:SHARE:FIRST. Raises ValueError for anything else."""
    return str(Polynomial.parse(str(value)) or "none")


def _only(plan: Plan, text: str, _: Sites) -> Plan:
    """Return the plan in binary64 everywhere except at the events and steps named."""
    kept = places_of(text)
    return _widened(plan, lambda site, step: (site, step) not in kept)


def _but(plan: Plan, text: str, _: Sites) -> Plan:
    """Return the plan with the events and steps named in binary64."""
    wide = places_of(text)
    return _widened(plan, lambda site, step: (site, step) in wide)


def _widened(plan: Plan, is_wide: Callable[[Site, bool], bool]) -> Plan:
    """Return the plan with some events and steps of sums in binary64.

    Such a sum is in ascending order, as in the plan `exact`, since some orders have no binary64
    steps.

    Args:
        plan: The plan to change.
        is_wide: A function of a site and a bool, which is True for the steps of the site's sum and
            False for its event. It returns whether these become binary64.
    """
    wide: dict[Site, Event] = {site: BINARY64 for site in Site if is_wide(site, False)}
    sums = tuple(WIDE if is_wide(site, True) else plan.accumulator(site) for site in PRODUCTS)
    return replace(plan.rounded(wide), accumulators=sums)


def _checked(build: Callable[[str], object]) -> Callable[[str], str]:
    """Return a function that returns its text unchanged, but raises what `build` raises for it."""

    def spell(text: str) -> str:
        build(text)
        return text

    return spell


def _one_of(
    what: str,
    names: Sequence[str],
    field: str,
    kind: type[StrEnum],
    aliases: Mapping[str, str] | None = None,
) -> Kind:
    """Return the kind that sets a field to one of several names.

    Args:
        what: What the names are of, for the message about an unknown one.
        names: The names, each with one spelling.
        field: The field of `Plan`.
        kind: The enumeration of the names.
        aliases: Other spellings, and the names that they mean.
    """

    def spell(name: str) -> str:
        name = (aliases or {}).get(name, name)
        if name not in names:
            raise ValueError(unknown(what, name, names))
        return name

    return Kind(spell, lambda plan, name, _: _replaced(plan, field, kind(spell(name))))


def _flag(field: str) -> Kind:
    """Return the kind that sets a field to true or false."""
    return Kind(
        truth_words, lambda plan, text, _: _replaced(plan, field, truth_words(text) == "true")
    )


def _replaced(plan: Plan, field: str, value: Any) -> Plan:
    """Return the plan with one field changed, by the name of the field."""
    return replace(plan, **{field: value})


def _place_words(text: str) -> str:
    """Return the one spelling of a list of events and steps."""
    return place_words(places_of(text))


KINDS: dict[str, Kind] = {
    "plan": Kind(_checked(Plan.preset), lambda _, name, __: Plan.preset(name)),
    "unfused": Kind(truth_words, _unfused),
    "pv_into_o": _flag("pv_into_o"),
    "format": Kind(event_words, _format, per_site=True),
    "mode": Kind(lambda text: str(mode_named(text)), _mode, per_site=True),
    "accumulator": Kind(_checked(accumulator_of), _accumulator, per_site=True),
    "exp": _one_of("exponential", tuple(Exponential), "exp", Exponential),
    "log2_e": _one_of("place of log2 e", tuple(Log2E), "log2_e", Log2E),
    "fused_exponent": _flag("fused_exponent"),
    "unfused_if_cut": _flag("unfused_if_cut"),
    "fused_without_mask": _flag("fused_without_mask"),
    "registers": _flag("registers"),
    "query_order": _one_of("order of queries", tuple(QueryOrder), "query_order", QueryOrder),
    "gradients_apart": _one_of(
        "gradients apart", tuple(GradientsApart), "gradients_apart", GradientsApart
    ),
    "scale_roots": _flag("scale_roots"),
    "scaled_keys": _flag("scaled_keys"),
    "dp_from_delta": _flag("dp_from_delta"),
    "split_tiles": Kind(
        count_words, lambda plan, text, _: _replaced(plan, "split_tiles", int(count_words(text)))
    ),
    "flushed_tiles": Kind(
        count_words, lambda plan, text, _: _replaced(plan, "flushed_tiles", int(count_words(text)))
    ),
    "stale_maximum": Kind(
        power_words,
        lambda plan, text, _: _replaced(plan, "stale_maximum", float(power_words(text))),
    ),
    "offset": Kind(
        count_words, lambda plan, text, _: _replaced(plan, "offset", int(count_words(text)))
    ),
    "polynomial": Kind(
        polynomial_words,
        lambda plan, text, _: _replaced(plan, "polynomial", Polynomial.parse(text)),
    ),
    "softcap": Kind(
        power_words, lambda plan, text, _: _replaced(plan, "softcap", float(power_words(text)))
    ),
    "capped_by": _one_of("way of a softcap", tuple(CappedBy), "capped_by", CappedBy),
    "tanh": _one_of("tanh", tuple(Tanh), "tanh", Tanh),
    "window": Kind(
        count_words, lambda plan, text, _: _replaced(plan, "window", int(count_words(text)))
    ),
    "sinks": _one_of("way of sinks", tuple(Sinks), "sinks", Sinks),
    "maximum_gradient": _flag("maximum_gradient"),
    "lse_base2": _flag("lse_base2"),
    "kept_state": _flag("kept_state"),
    "first_tile_apart": _flag("first_tile_apart"),
    "delta_products": _flag("delta_products"),
    "saved_p": _flag("saved_p"),
    "score_gradient": _one_of(
        "score gradient", tuple(ScoreGradient), "score_gradient", ScoreGradient
    ),
    "gradient_scale": _one_of(
        "place of the gradient's scale", tuple(ScaleOfGradient), "gradient_scale", ScaleOfGradient
    ),
    "row_sum": _one_of("row sum", tuple(RowSum), "row_sum", RowSum),
    "reciprocal": _one_of("reciprocal", tuple(Reciprocal), "reciprocal", Reciprocal),
    "exponent_again": _one_of(
        "exponent of the backward", tuple(BackwardExponent), "exponent_again", BackwardExponent
    ),
    "ds_from_p": _flag("ds_from_p"),
    "log": _one_of("logarithm", tuple(Logarithm), "log", Logarithm),
    "stabiliser": Kind(stabilizer_words, _stabilizer),
    "delta_from": _one_of(
        "delta_from", tuple(DeltaFrom), "delta_from", DeltaFrom, {"CENTERED": "CENTRED"}
    ),
    "key_order": _one_of("order of keys", tuple(KeyOrder), "key_order", KeyOrder),
    "only": Kind(_place_words, _only),
    "but": Kind(_place_words, _but),
}
"""The kinds of changes by name, in the order in which a sweep applies them."""
