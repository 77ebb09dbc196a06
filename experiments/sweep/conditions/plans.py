"""The plan of a cell: a preset, and the changes that its parameters make, in a fixed order."""

import functools
from collections.abc import Callable
from dataclasses import replace

from roundscope.attention.plan import (
    Event,
    Exponential,
    KeyOrder,
    Plan,
    Stabiliser,
    event_to,
    site_named,
)
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.rounding.modes import BINARY64, Rounding, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.experiments.sweep.conditions.cell import Value
from roundscope.experiments.sweep.conditions.values import accumulator_of, event_of, places_of

Settings = tuple[tuple[str, Value], ...]
Sites = tuple[Site, ...]
WIDE = Accumulator(step=BINARY64)
UNCHANGED = ("preset", "all", "none", False)  # values that leave the plan as it is; a stabiliser of none does not
ORDER = ("unfused", "format", "mode", "accumulator", "exp", "stabiliser", "key_order", "only", "but")


def settings_of(parameters: dict[str, Value]) -> Settings:
    """The parameters that make up the plan: the preset, and in the order in which they apply, those that change it."""
    changes = [(name, value) for name, value in parameters.items() if name.partition(".")[0] in ORDER and changes_plan(name, value)]
    changes.sort(key=lambda c: (ORDER.index(c[0].partition(".")[0]), "." in c[0]))
    return (("preset", parameters["preset"]), *changes)


def changes_plan(name: str, value: Value) -> bool:
    """False for a parameter whose value is: as the preset says."""
    return value not in UNCHANGED or (name, value) == ("stabiliser", "none")


@functools.lru_cache(maxsize=4096)
def plan_of(settings: Settings, seed: int) -> Plan:
    """The plan of `settings_of`, its stochastic roundings drawn from `seed`. Raises ValueError for what no plan can be."""
    plan = _built(settings)
    return _seeded(plan, seed) if any(r.mode == RoundingMode.STOCHASTIC for r in _roundings(plan)) else plan


@functools.lru_cache(maxsize=4096)
def _built(settings: Settings) -> Plan:
    plan = preset = Plan.preset(str(settings[0][1]))
    for name, value in settings[1:]:
        kind, _, site = name.partition(".")
        plan = _CHANGES[kind](plan, str(value), (site_named(site),) if site else ())
    return plan if plan == preset else replace(plan, name=f"{preset.name}*")


def _roundings(plan: Plan) -> list[Rounding]:
    return [*plan.roundings, *(a.step for a in plan.accumulators)]


def _seeded(plan: Plan, seed: int) -> Plan:
    """The plan with the seed in every stochastic rounding, steps of sums included."""
    own = lambda r: replace(r, seed=seed) if r.mode == RoundingMode.STOCHASTIC else r  # noqa: E731
    sums = tuple(replace(a, step=own(a.step)) for a in plan.accumulators)
    return replace(plan, roundings=tuple(own(r) for r in plan.roundings), accumulators=sums)


def _unfused(plan: Plan, _: str, __: Sites) -> Plan:
    """P V of normalised P, a sum of its own."""
    return replace(plan, normalise_first=True, pv_into_o=False)


def _format(plan: Plan, name: str, sites: Sites) -> Plan:
    return plan.rounded({site: event_of(name, plan[site].mode) for site in sites or Site})


def _mode(plan: Plan, mode: str, sites: Sites) -> Plan:
    return plan.rounded({site: event_to(plan.event(site), mode) for site in sites or Site if not plan[site].is_identity})


def _accumulator(plan: Plan, text: str, sites: Sites) -> Plan:
    new = tuple(accumulator_of(text) if site in (sites or PRODUCTS) else plan.accumulator(site) for site in PRODUCTS)
    return replace(plan, accumulators=new)


def _exp(plan: Plan, name: str, _: Sites) -> Plan:
    return replace(plan, exp=Exponential(name))


def _stabiliser(plan: Plan, beta: str, _: Sites) -> Plan:
    return replace(plan, stabiliser=None if beta == "none" else Stabiliser(beta=float(beta)))


def _key_order(plan: Plan, name: str, _: Sites) -> Plan:
    return replace(plan, key_order=KeyOrder(name))


def _only(plan: Plan, text: str, _: Sites) -> Plan:
    """binary64 but for the events and steps named."""
    kept = places_of(text)
    return _widened(plan, lambda site, step: (site, step) not in kept)


def _but(plan: Plan, text: str, _: Sites) -> Plan:
    """The events and steps named in binary64."""
    wide = places_of(text)
    return _widened(plan, lambda site, step: (site, step) in wide)


def _widened(plan: Plan, is_wide: Callable[[Site, bool], bool]) -> Plan:
    """Events and sums in binary64; such a sum is ascending, as in the golden plan: some orders have no binary64 steps."""
    wide: dict[Site, Event] = {site: BINARY64 for site in Site if is_wide(site, False)}
    sums = tuple(WIDE if is_wide(site, True) else plan.accumulator(site) for site in PRODUCTS)
    return replace(plan.rounded(wide), accumulators=sums)


_CHANGES: dict[str, Callable[[Plan, str, Sites], Plan]] = {
    "unfused": _unfused, "format": _format, "mode": _mode, "accumulator": _accumulator, "exp": _exp,
    "stabiliser": _stabiliser, "key_order": _key_order, "only": _only, "but": _but,
}  # fmt: skip
