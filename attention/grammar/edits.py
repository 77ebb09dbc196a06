"""What a change may do to a plan: one table of kinds, each with how its value is spelled and what
it does.

`apply` changes nothing but what the kind says: neither the plan's name nor its seeds.
"""

import math
from collections.abc import Callable, Sequence
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
    Stabiliser,
    Tanh,
)
from roundscope.attention.plans.plan import Event, Plan, event_to
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.formats.format import unknown
from roundscope.emu.rounding.modes import BINARY64, mode_named
from roundscope.emu.sums.accumulator import Accumulator

Sites = tuple[Site, ...]  # none: all that the kind is of
WIDE = Accumulator(step=BINARY64)
RESCALES = (Site.DM, Site.ALPHA, Site.AL, Site.AO)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change. spell: the one spelling of a value, ValueError for what is none; per_site:
    whether sites may be named.
    """

    spell: Callable[[str], str]
    apply: Callable[[Plan, str, Sites], Plan]
    per_site: bool = False


def apply(plan: Plan, kind: str, value: str, sites: Sites = ()) -> Plan:
    """The plan with one change; sites: of which events, or sums, of none: of all.

    Raises ValueError with the repair.
    """
    return KINDS[kind].apply(plan, value, sites)


def _format(plan: Plan, text: str, sites: Sites) -> Plan:
    return plan.rounded(dict.fromkeys(sites or Site, event_of(text)))


def _mode(plan: Plan, mode: str, sites: Sites) -> Plan:
    return plan.rounded(
        {
            site: event_to(plan.event(site), mode)
            for site in sites or Site
            if not plan[site].is_identity
        }
    )


def _accumulator(plan: Plan, text: str, sites: Sites) -> Plan:
    made = accumulator_of(text)
    return replace(
        plan,
        accumulators=tuple(
            made if s in (sites or PRODUCTS) else plan.accumulator(s) for s in PRODUCTS
        ),
    )


def _stabiliser(plan: Plan, beta: str, _: Sites) -> Plan:
    beta = stabiliser_words(beta)
    return replace(plan, stabiliser=None if beta == "none" else Stabiliser(beta=float(beta)))


def stabiliser_words(value: str | float) -> str:
    """none, or beta as the shortest text, so that 2, 2.0 and "2" are one condition.

    Raises ValueError.
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
    """P V of normalised P, a sum of its own."""
    return (
        replace(plan, normalise_first=True, pv_into_o=False)
        if truth_words(value) == "true"
        else plan
    )


def truth_words(value: str) -> str:
    """true or false. Raises ValueError for anything else."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return str(value).lower()


def count_words(value: str) -> str:
    """A whole number, 0 or more. Raises ValueError for anything else."""
    if not str(value).isdecimal():
        raise ValueError("give a whole number, 0 or more")
    return str(int(value))


def power_words(value: str) -> str:
    """A number, 0 or more. Raises ValueError for anything else."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < math.inf:
        raise ValueError("give a number, 0 or more")
    return f"{number:g}"


def polynomial_words(value: str) -> str:
    """none or EVERY:SHARE:FIRST. Raises ValueError for anything else."""
    return str(Polynomial.parse(str(value)) or "none")


def _only(plan: Plan, text: str, _: Sites) -> Plan:
    """binary64 but for the events and steps named."""
    kept = places_of(text)
    return _widened(plan, lambda site, step: (site, step) not in kept)


def _but(plan: Plan, text: str, _: Sites) -> Plan:
    """The events and steps named in binary64."""
    wide = places_of(text)
    return _widened(plan, lambda site, step: (site, step) in wide)


def _widened(plan: Plan, is_wide: Callable[[Site, bool], bool]) -> Plan:
    """Events and sums in binary64; such a sum is ascending, as in the golden plan: some orders have
    no binary64 steps.
    """
    wide: dict[Site, Event] = {site: BINARY64 for site in Site if is_wide(site, False)}
    sums = tuple(WIDE if is_wide(site, True) else plan.accumulator(site) for site in PRODUCTS)
    return replace(plan.rounded(wide), accumulators=sums)


def _checked(build: Callable[[str], object]) -> Callable[[str], str]:
    def spell(text: str) -> str:
        build(text)
        return text

    return spell


def _one_of(what: str, names: Sequence[str], field: str, kind: type[StrEnum]) -> Kind:
    def spell(name: str) -> str:
        if name not in names:
            raise ValueError(unknown(what, name, names))
        return name

    return Kind(spell, lambda plan, name, _: _replaced(plan, field, kind(spell(name))))


def _flag(field: str) -> Kind:
    return Kind(
        truth_words, lambda plan, text, _: _replaced(plan, field, truth_words(text) == "true")
    )


def _replaced(plan: Plan, field: str, value: Any) -> Plan:
    return replace(plan, **{field: value})


def _place_words(text: str) -> str:
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
    "stabiliser": Kind(stabiliser_words, _stabiliser),
    "delta_from": _one_of("delta_from", tuple(DeltaFrom), "delta_from", DeltaFrom),
    "key_order": _one_of("order of keys", tuple(KeyOrder), "key_order", KeyOrder),
    "only": Kind(_place_words, _only),
    "but": Kind(_place_words, _but),
}
"""By name, in the order in which a sweep applies them."""
