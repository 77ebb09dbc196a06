"""`TracedPlan`: a plan whose formats, modes and seeds are a table of integers, so that they are
data to XLA.

`structure(plan)` is what is left static: how the kernel is built, the orders of its sums, which
roundings are stochastic, whether the steps of a sum round to nearest even, otherwise, or at random,
and block formats. Plans of one structure share one compilation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.plans.plan import Plan, check_factors, ordinal
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.backends.ops import ANY_PRODUCT
from roundscope.emu.backends.xla.traced import Kind, TracedRounding, kind_of, rounding_of, row_of
from roundscope.emu.rounding.modes import BINARY32, Rounding, rounding
from roundscope.emu.rounding.threefry import threefry2x32
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.aligned import Alignment

CHECKED = (
    "name",
    "roundings",
    "blocks",
    "accumulators",
)  # fields of a plan that `difference` has compared part by part
STOCHASTIC32, ANY32 = rounding("fp32", "stochastic"), rounding("fp32", "toward-zero")


class TracedAccumulator(NamedTuple):
    """Stands for an `Accumulator`."""

    order: Order
    step: TracedRounding
    chunk: int
    alignment: Alignment | None


class TracedPlan:
    """Stands for a `Plan`: `like` with the roundings of a table. Needs 64-bit types enabled."""

    def __init__(self, like: Plan, table: Any) -> None:
        self.like = like
        # two words of 32 bits, since a caller's jit may have 64-bit types disabled
        self.table = (table[..., 0].astype("int64") << 32) | table[..., 1].astype("int64")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)  # what is no rounding

    def __getitem__(self, site: Site) -> TracedRounding:
        kind = kind_of(self.like[site])
        return rounding_of(self.table[ordinal(site)], Kind.ANY if kind is Kind.NEAREST else kind)

    def product_bits(self, _: Site) -> int:
        """As `Plan.product_bits`, of any formats."""
        return ANY_PRODUCT

    def accumulator(self, site: Site) -> TracedAccumulator:
        """As `Plan.accumulator`."""
        acc = self.like.accumulator(site)
        row = self.table[len(Site) + PRODUCTS.index(site)]
        return TracedAccumulator(
            acc.order, rounding_of(row, kind_of(acc.step)), acc.chunk, acc.alignment
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class HeadPlans:
    """Plans of heads as data, a pytree: `like` is static, `table` (heads, rows, FIELDS, 2) uint32
    may be mapped, indexed, stacked.
    """

    like: Plan = field(metadata={"static": True})
    table: Any


def head_plans(plans: Sequence[Plan]) -> HeadPlans:
    """A plan per query head, for `attend(..., plan=head_plans(plans))` inside jit and vmap: other
    plans of the same structure then need no compilation.

    Raises ValueError for plans of two structures, with what differs.
    """
    return HeadPlans(common_structure(plans), np.stack([table_of(p) for p in plans]))


def common_structure(plans: Sequence[Plan]) -> Plan:
    """The structure of plans that can share a compilation.

    Raises ValueError naming the first that cannot.
    """
    for p in plans:
        check_factors(p)
    like = [structure(p) for p in plans]
    if other := next((n for n, plan in enumerate(like) if plan != like[0]), 0):
        told = difference(plans[0], plans[other])
        raise ValueError(
            f"plan: entries 0 and {other} differ in more than is data, {told}; call them separately"
        )
    return like[0]


def difference(a: Plan, b: Plan) -> str:
    """The first thing in which two plans of different structure differ, in words."""
    for site in Site:
        if a.block(site) != b.block(site):
            return f"{site}: {a.event(site)} and {b.event(site)}, and blocks are no data"
        if (kind_of(a[site]) is Kind.STOCHASTIC) != (kind_of(b[site]) is Kind.STOCHASTIC):
            return f"{site}: {a[site]} and {b[site]}, of which one draws random bits"
    for site in PRODUCTS:
        one, other = a.accumulator(site), b.accumulator(site)
        if _static(one) == _static(other):
            continue
        if replace(_static(one), step=BINARY32) != replace(_static(other), step=BINARY32):
            return f"the sum of {site}: {one} and {other}"
        return (
            f"the sum of {site}: steps {one.step} and {other.step}; both to nearest even, both"
            " otherwise, or both at random"
        )
    name = next(
        f.name
        for f in fields(Plan)
        if f.name not in CHECKED and getattr(a, f.name) != getattr(b, f.name)
    )
    return f"{name}: {getattr(a, name)} and {getattr(b, name)}"


def reseeded(plans: HeadPlans, number: Any) -> HeadPlans:
    """The plans with every seed mixed with a number (uint32, broadcastable to the table's axes
    before rows): fresh random bits for each step, layer, ...

    Pure; may be traced. Only seeds change; the same seed and number give the same new seed.
    """
    table = jnp.asarray(plans.table)
    seed = table[..., -1, 1]
    number = jnp.broadcast_to(jnp.asarray(number, jnp.uint32)[..., None], seed.shape)
    mixed, _ = threefry2x32(seed, jnp.zeros_like(seed), number, jnp.zeros_like(seed))
    return HeadPlans(plans.like, table.at[..., -1, 1].set(mixed))


def is_stochastic(like: Plan) -> bool:
    """Whether a plan draws random bits: at an event, or in the step of a sum that is not native."""
    steps = [a.step for a in like.accumulators if a.order is not Order.NATIVE]
    return any(kind_of(r) is Kind.STOCHASTIC for r in (*like.roundings, *steps))


@lru_cache(4096)
def table_of(plan: Plan) -> np.ndarray:
    """The roundings of all events and of the steps of all sums: (len(Site) + len(PRODUCTS), FIELDS,
    2), upper and lower words.
    """
    rows = np.stack([row_of(r) for r in (*plan.roundings, *(a.step for a in plan.accumulators))])
    return np.stack([rows >> 32, rows & 0xFFFF_FFFF], axis=-1).astype(np.uint32)


@lru_cache(4096)
def structure(plan: Plan) -> Plan:
    """The plan without what is data: a canonical plan, equal for all that share a compilation.

    Block formats are no data, but for seeds.
    """
    accumulators = tuple(map(_static, plan.accumulators))
    blocks = dict(plan.blocks)
    events = tuple(
        blocks[site].element if site in blocks else _canonical_event(plan[site]) for site in Site
    )
    return replace(plan, name="", roundings=events, accumulators=accumulators)


def _static(a: Accumulator) -> Accumulator:
    """What is static of a sum."""
    has_chunk = a.order in (Order.CHUNKED, Order.STRIDED, Order.OCTETS, Order.ALIGNED)
    return replace(a, step=_canonical(a.step), chunk=a.chunk if has_chunk else 16)


def _canonical_event(r: Rounding) -> Rounding:
    return STOCHASTIC32 if kind_of(r) is Kind.STOCHASTIC else BINARY32


def _canonical(step: Rounding) -> Rounding:
    return {Kind.NEAREST: BINARY32, Kind.ANY: ANY32, Kind.STOCHASTIC: STOCHASTIC32}[kind_of(step)]
