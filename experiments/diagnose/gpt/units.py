"""Units of the search: one rounding event in one head of one layer.

Here are those that a plan rounds, and the plans with some of them exact.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from roundscope.attention import Plan, Site
from roundscope.attention.sites import PRODUCTS
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Order
from roundscope.experiments.train.config import WORD
from roundscope.experiments.train.gpt.plans import Plans
from roundscope.tools.diagnose.search import FEW, Blocks, Family, grouped
from roundscope.tools.diagnose.tensors.measured import WIDE, occurring
from roundscope.tools.report.wording import listed

Edit = Callable[[Plans], Plans]  # the plans of a run -> those of a replay
ORDER = {site: i for i, site in enumerate(Site)}
SEEDS_APART = 7919  # between the stochastic seeds of two repeats


class Unit(NamedTuple):
    """An event in one head."""

    layer: int
    head: int
    site: Site


Units = frozenset[Unit]


def units_of(plans: Plans) -> Units:
    """Return the events that some plan, or steps of a sum, rounds to fewer bits than FP32."""
    return frozenset(
        Unit(i, n, site)
        for i, row in enumerate(plans)
        for n, plan in enumerate(row)
        for site in occurring(plan)
        if is_low(plan, site)
    )


def is_low(plan: Plan, site: Site) -> bool:
    """Return whether an event, or the steps of its sum, have fewer than 24 bits."""
    own = plan[site].format.precision < WIDE
    if site not in PRODUCTS:
        return own
    sums = plan.accumulator(site)
    return own or (sums.order is not Order.NATIVE and sums.step.format.precision < WIDE)


def exactly(units: Collection[Unit]) -> Edit:
    """Return the edit that makes these events FP32, sums' steps included, and keeps structures."""
    by_head: dict[tuple[int, int], list[Site]] = {}
    for layer, head, site in units:
        by_head.setdefault((layer, head), []).append(site)
    return lambda plans: tuple(
        tuple(_lifted(p, by_head.get((i, n), ())) for n, p in enumerate(row))
        for i, row in enumerate(plans)
    )


def _lifted(plan: Plan, sites: Iterable[Site]) -> Plan:
    for site in sites:
        # stochastic rounding to FP32 stays stochastic: it is another program, and changes no more
        # than FP32 does
        mode = RoundingMode.TIES_TO_EVEN
        if plan[site].mode is RoundingMode.STOCHASTIC:
            mode = RoundingMode.STOCHASTIC
        plan = plan.at(site, rounding("fp32", mode, seed=plan[site].seed))
        if site in PRODUCTS and is_low(plan, site):
            sums = plan.accumulator(site)
            plan = plan.adding(site, replace(sums, step=rounding("fp32", sums.step.mode)))
    return plan


def everywhere(change: Callable[[Plan], Plan]) -> Edit:
    """Return the edit that makes one change of every plan."""
    return lambda plans: tuple(tuple(change(plan) for plan in row) for row in plans)


def reseeded(repeat: int) -> Edit:
    """Return the edit that gives plans other random bits; repeat 0 is the run's own."""

    def other(r: Rounding) -> Rounding:
        if r.mode is not RoundingMode.STOCHASTIC:
            return r
        return replace(r, seed=(r.seed + SEEDS_APART * repeat) % WORD)

    return everywhere(lambda plan: replace(plan, roundings=tuple(other(r) for r in plan.roundings)))


def is_random(plans: Plans) -> bool:
    """Return whether some event of the plans draws random bits."""
    return any(
        r.mode is RoundingMode.STOCHASTIC for row in plans for plan in row for r in plan.roundings
    )


def change_words(units: Collection[Unit]) -> str:
    """Return units as `roundscope train --at` takes them: layer=1 head=0 site=OD,PV -> fp32; ..."""
    heads_of: dict[tuple[int, frozenset[Site]], list[int]] = {}
    for layer, head in sorted({(u.layer, u.head) for u in units}):
        sites = frozenset(u.site for u in units if u[:2] == (layer, head))
        heads_of.setdefault((layer, sites), []).append(head)

    def commas(words: Iterable[object]) -> str:
        return ",".join(map(str, words))

    parts = [
        (layer, commas(heads), commas(s for s in Site if s in sites))
        for (layer, sites), heads in heads_of.items()
    ]
    return "; ".join(
        f"layer={layer} head={heads} site={names} -> fp32" for layer, heads, names in parts
    )


def unit_words(units: Collection[Unit], all_units: Units) -> str:
    """Return units in a sentence: 'OD in all heads of all layers', 'PV of layer 1, head 0'."""
    by_sites: dict[tuple[Site, ...], list[tuple[int, int]]] = {}
    for place in sorted({u[:2] for u in units}):
        by_sites.setdefault(tuple(s for s in Site if Unit(*place, s) in units), []).append(place)
    return "; ".join(
        f"{listed([str(x) for x in sites])} {_places(places, {u[:2] for u in all_units})}"
        for sites, places in by_sites.items()
    )


def _places(places: list[tuple[int, int]], known: set[tuple[int, int]]) -> str:
    if set(places) == known:
        if len(known) > 1:
            return "wherever it is rounded"
        return f"in layer {places[0][0]}, head {places[0][1]}"
    layers = sorted({layer for layer, _ in places})
    whole = [layer for layer in layers if {p for p in known if p[0] == layer} <= set(places)]

    def heads(layer: int) -> str:
        return f", head {listed([str(n) for i, n in places if i == layer])}"

    return f"in {' and in '.join(f'layer {i}' + ('' if i in whole else heads(i)) for i in layers)}"


def by_layer(units: Units) -> Blocks:
    """Return blocks of a layer's events."""
    return grouped(units, lambda u: u.layer, lambda u: f"layer {u.layer}")


def by_head(units: Units) -> Blocks:
    """Return blocks of a head's events."""
    return grouped(units, lambda u: u[:2], row_words)


def by_site(units: Units) -> Blocks:
    """Return blocks of an event in all heads."""
    return grouped(units, lambda u: ORDER[u.site], lambda u: str(u.site))


def singly(units: Units) -> Blocks:
    """Return blocks of one event in one head."""
    return grouped(
        units,
        lambda u: (u.layer, u.head, ORDER[u.site]),
        lambda u: f"{u.site} of layer {u.layer}, head {u.head}",
    )


def levels(units: Units) -> list[tuple[str, Callable[[Units], Blocks]]]:
    """Return the levels of the search: layers, unless the heads have few sets; heads, events."""
    fine: list[tuple[str, Callable[[Units], Blocks]]] = [("heads", by_head), ("events", by_site)]
    return fine if 2 ** len(by_head(units)) - 2 <= FEW else [("layers", by_layer), *fine]


def row_words(place: tuple[Any, ...]) -> str:
    """Return a head in words."""
    return f"layer {place[0]}, head {place[1]}"


FAMILY = Family(
    levels=levels,
    classes=lambda units: [],
    few=None,
    by_site=by_site,
    singly=singly,
    words=unit_words,
    change=change_words,
    row=row_words,
    sites=Site,
)
