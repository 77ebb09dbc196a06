"""`TracedPlan`: a plan whose formats, modes and seeds are a table of integers, so that they are data to XLA.

`structure(plan)` is what is left static: how the kernel is built, the orders of its sums, which roundings are
stochastic. Plans of one structure share one compilation.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attention.plan import Plan, ordinal
from attention.sites import PRODUCTS, Site
from emu.accumulate import Order
from emu.rounding import BINARY32, Rounding, rounding
from emu.traced import Kind, TracedRounding, kind_of, rounding_of, row_of

STOCHASTIC32, ANY32 = rounding("fp32", "stochastic"), rounding("fp32", "toward-zero")


class TracedAccumulator(NamedTuple):
    """Stands for an `Accumulator`."""

    order: Order
    step: TracedRounding
    chunk: int


class TracedPlan:
    """Stands for a `Plan`: `like` with the roundings of a table (len(Site) + len(PRODUCTS), FIELDS)."""

    def __init__(self, like: Plan, table: Any) -> None:
        self.like, self.table = like, table

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)  # what is no rounding

    def __getitem__(self, site: Site) -> TracedRounding:
        kind = kind_of(self.like[site])
        return rounding_of(self.table[ordinal(site)], Kind.ANY if kind is Kind.NEAREST else kind)

    def accumulator(self, site: Site) -> TracedAccumulator:
        """As `Plan.accumulator`."""
        acc = self.like.accumulator(site)
        row = self.table[len(Site) + PRODUCTS.index(site)]
        return TracedAccumulator(acc.order, rounding_of(row, kind_of(acc.step)), acc.chunk)


@lru_cache(4096)
def table_of(plan: Plan) -> np.ndarray:
    """The roundings of all events and of the steps of all sums, (len(Site) + len(PRODUCTS), FIELDS) int64."""
    return np.stack([row_of(r) for r in (*plan.roundings, *(a.step for a in plan.accumulators))])


@lru_cache(4096)
def structure(plan: Plan) -> Plan:
    """The plan without what is data: a canonical plan, equal for all that share a compilation."""
    accumulators = tuple(replace(a, step=_canonical(a.step), chunk=a.chunk if a.order is Order.CHUNKED else 16) for a in plan.accumulators)
    events = tuple(STOCHASTIC32 if kind_of(r) is Kind.STOCHASTIC else BINARY32 for r in plan.roundings)
    return replace(plan, name="", roundings=events, accumulators=accumulators)


def _canonical(step: Rounding) -> Rounding:
    return {Kind.NEAREST: BINARY32, Kind.ANY: ANY32, Kind.STOCHASTIC: STOCHASTIC32}[kind_of(step)]
