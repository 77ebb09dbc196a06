"""Which events a call of attention has: the checks of injections and records, so that none silently does nothing."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from roundscope.attention.events.recorder import Record
from roundscope.attention.injection import FlipBit, Injection
from roundscope.attention.plan import Plan
from roundscope.attention.sites import BACKWARD, KEY_SITES, ONCE, QUERY_FEATURES, RESCALES, Axes, Site
from roundscope.emu.sums.accumulator import Order


class Sizes(NamedTuple):
    """Of a call: entries along each axis, features of q and of v, and rows of a tile."""

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    features: int
    value_features: int
    block_q: int
    block_k: int


def absent(plan: Plan, site: Site) -> tuple[str, str] | None:
    """(why a plan never reaches a site, which sites to use instead), or None if it does."""
    if site is Site.PV and plan.pv_into_o:
        return f"{plan.name} accumulates P V into O, so PV never rounds alone", "O"
    if plan.normalise_first and site in RESCALES:
        return f"{plan.name} normalises before P V and never rescales", "P, PV or OUT"
    return None


def occurs(plan: Plan, site: Site) -> None:
    """Raises ValueError if the plan never reaches the site."""
    if missing := absent(plan, site):
        raise ValueError("{}; use {}".format(*missing))


def check_injection(injection: Injection, plan: Plan) -> None:
    """Raises ValueError for an injection at an event that the plan does not have, or of a bit that the event's format does not have."""
    site, f = injection.site, plan[injection.site].format
    if missing := absent(plan, site):
        raise ValueError("site={}: {}; inject at {}".format(site, *missing))
    if isinstance(injection.what, FlipBit):
        if not injection.what.bit < f.bits:
            raise ValueError(f"bit={injection.what.bit}: a code of {f.name} at {site} has bits 0 to {f.bits - 1}")
        if f.precision > 24:
            raise ValueError(f"FlipBit at {site}: {site} is {f.name}, the carrier, of which no bit is flipped; round the site first")


def check_forward(inject: Iterable[Injection]) -> None:
    """Raises ValueError for an injection at an event of the backward, of a call that has none."""
    for site in (i.site for i in inject):
        if site in BACKWARD:
            raise ValueError(f"inject at {site}: this call runs no backward; call examine with do, or choose a forward site")


def check_place(injection: Injection, sizes: Sizes, owner: str = "the call") -> None:
    """Raises ValueError, "SITE:selection=N: `owner` has ...", for an injection at entries that are not there."""
    for name, limit in limits(injection.site, sizes).items():
        where: Any = getattr(injection, name)
        if where is not None and max(where) >= limit:
            raise ValueError(f"{injection.site}:{name}={max(where)}: {owner} has {limit}, numbered from 0 to {limit - 1}")


def limits(site: Site, sizes: Sizes) -> dict[str, int]:
    """How many there are of what each selection of an `Injection` at the site counts."""
    of_keys = site.axes is Axes.SH
    walked, block = (sizes.queries, sizes.block_q) if of_keys else (sizes.keys, sizes.block_k)
    return {
        "batch": sizes.batch,
        "heads": sizes.key_heads if site in KEY_SITES else sizes.heads,
        "rows": sizes.keys if of_keys else sizes.queries,
        "columns": sizes.keys,
        "features": sizes.features if site in QUERY_FEATURES else sizes.value_features,
        "tiles": 1 if site in ONCE else -(-walked // block),
    }


def in_traces(plan: Plan, site: Site) -> bool:
    """Whether a trace speaks of a site; of rescaling always, though it may have had nothing to rescale."""
    return site in RESCALES or absent(plan, site) is None


def check_record(record: Record, plan: Plan) -> None:
    """Raises ValueError for a record that would stay empty: of events, or of additions, of which the plan has none.

    A record of all sites, or of all sums, is of those that the plan has.
    """
    for name in ("events", "ones"):
        sites = getattr(record, name)
        if sites and not any(in_traces(plan, site) for site in sites):
            raise ValueError("record: {}={}: {}; use {}".format(name, sites[0], *(absent(plan, sites[0]) or ())))
    if record.steps and all(plan.accumulator(site).order is Order.NATIVE for site in record.steps):
        told = f"record: steps={record.steps[0]}: {plan.name} adds {record.steps[0]} up natively, in steps that nobody sees"
        raise ValueError(f"{told}; give it another accumulator")
