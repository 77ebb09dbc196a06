"""Plans as data: `TracedPlan` is a plan whose formats, modes and seeds are a table of integers, so
that another plan of the same structure needs no new compilation by XLA.

`structure(plan)` is the part of a plan that is compiled: the choices of the kernel, the orders of
its sums, block formats, and the kinds of modes. An event is stochastic or not; the steps of a sum
round to nearest even, in another mode, or stochastically. `head_plans` makes such a table, with one
plan for each query head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import CHOICES, STORED
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.arrays import Array
from roundscope.emu.backends.ops import ANY_PRODUCT
from roundscope.emu.backends.xla.traced import (
    Kind,
    TracedRounding,
    kind_of,
    rounding_in,
    rounding_of,
    row_of,
)
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import check_array, check_seed
from roundscope.emu.roundings.modes import BINARY32, Rounding, rounding
from roundscope.emu.roundings.random import threefry2x32
from roundscope.emu.shown import shown
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.aligned import Alignment
from roundscope.emu.sums.matrix_cores import MatrixCore
from roundscope.events.plan import check_factors

STOCHASTIC32, ANY32 = rounding("fp32", "stochastic"), rounding("fp32", "toward-zero")


class TracedAccumulator(NamedTuple):
    """An `Accumulator` whose step is data; it has the attributes that sums read."""

    order: Order
    step: TracedRounding
    chunk: int
    alignment: Alignment | MatrixCore | None


class TracedPlan:
    """A plan with the roundings of a table, which events can read like a `Plan`.

    Args:
        like: The structure, from which everything but roundings is read.
        table: (rows, FIELDS, 2) of uint32, traced or not: one plan of `HeadPlans.table`. 64-bit
            types have to be enabled.
    """

    def __init__(self, like: Plan, table: Array) -> None:
        self.like = like
        # two words of 32 bits, since a caller's jit may have 64-bit types disabled
        self.table = (table[..., 0].astype("int64") << 32) | table[..., 1].astype("int64")

    def __getattr__(self, name: str) -> Any:
        """Return a field or method of the structure, which is everything but roundings."""
        return getattr(self.like, name)

    def __getitem__(self, site: Site) -> TracedRounding:
        """Return the rounding of a site, as data."""
        kind = kind_of(self.like[site])
        return rounding_of(self.table[site.ordinal], Kind.ANY if kind is Kind.NEAREST else kind)

    def product_bits(self, _: Site) -> int:
        """Return the bits of a product of any formats, since the formats are data."""
        return ANY_PRODUCT

    def accumulator(self, site: Site) -> TracedAccumulator:
        """Return how the sum at a site is added up; its step is data."""
        acc = self.like.accumulator(site)
        row = self.table[len(Site) + PRODUCTS.index(site)]
        return TracedAccumulator(
            acc.order, rounding_of(row, kind_of(acc.step)), acc.chunk, acc.alignment
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class HeadPlans:
    """Plans of heads as data, a pytree that `jax.jit` and `jax.vmap` take as an argument.

    Args:
        like: The structure that all plans share; static.
        table: The roundings, (heads, len(Site) + len(PRODUCTS), FIELDS, 2) of uint32, which may be
            mapped over, indexed and stacked along further leading axes.
    """

    like: Plan = field(metadata={"static": True})
    table: Array


@known_arguments
def head_plans(plans: Sequence[Plan]) -> HeadPlans:
    """Return plans as data, one for each query head, for `attend(..., plan=head_plans(plans))`.

    Inside jit and vmap, other plans of the same structure then need no compilation.

    Args:
        plans: As many plans as the call has query heads.

    Returns:
        The plans as arrays, an argument that `jax.jit` and `jax.vmap` take.

    Raises:
        ValueError: Two plans have different structures; the message says what differs.

    Example:
        >>> from roundscope import Plan, head_plans
        >>> plan = Plan.preset("fa2-bf16")
        >>> head_plans([plan, plan.at("O", "bf16")]).table.shape[0]
        2
    """
    if not isinstance(plans, list | tuple) or not plans:
        raise TypeError(f"plans={shown(plans)}: give a list with a plan for each query head")
    if others := [p for p in plans if not isinstance(p, Plan)]:
        raise TypeError(f"plans: {shown(others[0])} among them; give plans, as Plan.preset('fa2')")
    return HeadPlans(common_structure(plans), np.stack([table_of(p) for p in plans]))


def common_structure(plans: Sequence[Plan]) -> Plan:
    """Return the structure of plans that can share a compilation.

    Raises:
        ValueError: A plan has another structure than the first; the message has its position and
            what differs. Or a tensor core cannot read the factors of a product.
    """
    for p in plans:
        check_factors(p)
    like = [structure(p) for p in plans]
    if other := next((n for n, plan in enumerate(like) if plan != like[0]), 0):
        what = difference(plans[0], plans[other])
        raise ValueError(
            f"plan: entries 0 and {other} differ in more than is data, {what}; call them separately"
        )
    return like[0]


def difference(a: Plan, b: Plan) -> str:
    """Return in words the first difference between two plans of different structure."""
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
    name = next(name for name in STORED if name in CHOICES and getattr(a, name) != getattr(b, name))
    return f"{name}: {getattr(a, name)} and {getattr(b, name)}"


@known_arguments
def reseeded(plans: HeadPlans, number: "Array | int") -> HeadPlans:
    """Return plans with every seed mixed with a number, for fresh random bits in each step or
    layer of a training.

    Only seeds change, and the same seed and number give the same new seed. The function is pure and
    may be traced, so that the number of a step is data and no step compiles anew.

    Args:
        plans: What `head_plans` returned; its table may have more leading axes.
        number: A uint32 number, or an array of them that broadcasts to the axes of the table before
            its last three.

    Returns:
        The plans with new seeds, as JAX arrays.

    Example:
        >>> import jax
        >>> from roundscope import Plan, head_plans, reseeded
        >>> plan = Plan.preset("fa2-bf16").at("O", "bf16", "stochastic")
        >>> plans = head_plans([plan, plan])
        >>> first, second = (jax.jit(reseeded)(plans, step) for step in (1, 2))
        >>> bool((first.table == second.table).all()), first.like == second.like
        (False, True)
    """
    if not isinstance(plans, HeadPlans):
        raise TypeError(f"plans={shown(plans)}: give what head_plans([...]) returned")
    if not isinstance(number, jax.Array | np.ndarray):
        check_seed("number", number)
    check_array("number", number)
    if np.dtype(number.dtype if hasattr(number, "dtype") else int).kind not in "iu":
        raise TypeError(f"number: {shown(number)}, must be whole numbers from 0 to 2^32 - 1")
    table = jnp.asarray(plans.table)
    seed = table[..., -1, 1]
    number = jnp.broadcast_to(jnp.asarray(number, jnp.uint32)[..., None], seed.shape)
    mixed, _ = threefry2x32(seed, jnp.zeros_like(seed), number, jnp.zeros_like(seed))
    return HeadPlans(plans.like, table.at[..., -1, 1].set(mixed))


def is_stochastic(like: Plan) -> bool:
    """Return whether a plan draws random bits, at an event or in a step of a sum.

    Native sums have no steps.
    """
    steps = [a.step for a in like.accumulators if a.order is not Order.NATIVE]
    return any(kind_of(r) is Kind.STOCHASTIC for r in (*like.roundings, *steps))


@lru_cache(4096)
def table_of(plan: Plan) -> NDArray[np.uint32]:
    """Return the roundings of all events, and then of the steps of all sums, as integers.

    The shape is (len(Site) + len(PRODUCTS), FIELDS, 2); the last axis has the upper and the lower
    word of a number.
    """
    rows = np.stack([row_of(r) for r in (*plan.roundings, *(a.step for a in plan.accumulators))])
    return np.stack([rows >> 32, rows & 0xFFFF_FFFF], axis=-1).astype(np.uint32)


def plan_in(like: Plan, table: NDArray[np.uint32]) -> Plan:
    """Return the plan of a structure whose roundings are in a table, as `table_of` returns it.

    Formats that have the same numbers are one format, and the name is that of the structure.
    """
    words = np.asarray(table).astype(np.int64)
    rows = [rounding_in(tuple(row)) for row in (words[..., 0] << 32 | words[..., 1]).tolist()]
    steps = rows[len(Site) :]
    return replace(
        like,
        roundings=tuple(rows[: len(Site)]),
        accumulators=tuple(
            replace(a, step=step) for a, step in zip(like.accumulators, steps, strict=True)
        ),
    )


@lru_cache(4096)
def structure(plan: Plan) -> Plan:
    """Return the plan without its data; the result is equal for all plans that share a compilation.

    Its name is empty, and each rounding is replaced by a fixed one of the same kind. Block formats
    are not data, except for their seeds.
    """
    accumulators = tuple(map(_static, plan.accumulators))
    blocks = dict(plan.blocks)
    events = tuple(
        blocks[site].element if site in blocks else _canonical_event(plan[site]) for site in Site
    )
    return replace(plan, name="", roundings=events, accumulators=accumulators)


def _static(a: Accumulator) -> Accumulator:
    """Return the accumulator with its step replaced by a fixed one of the same kind."""
    return replace(a, step=_canonical(a.step), chunk=a.chunk if a.order.has_chunk else 16)


def _canonical_event(r: Rounding) -> Rounding:
    """Return the fixed rounding that replaces those that an event may have as data."""
    return STOCHASTIC32 if kind_of(r) is Kind.STOCHASTIC else BINARY32


def _canonical(step: Rounding) -> Rounding:
    """Return the fixed rounding that replaces those that a step of a sum may have as data."""
    return {Kind.NEAREST: BINARY32, Kind.ANY: ANY32, Kind.STOCHASTIC: STOCHASTIC32}[kind_of(step)]
