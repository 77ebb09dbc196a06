"""The plans of a run as data: tables with an axis of layers, and one of arms.

Layers of one structure share a table. Where layers differ in more than is data, each has a table of
its own, and consecutive layers of one structure still run as one loop (`stretches`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import native
from roundscope.attention.plans.traced import HeadPlans, head_plans, structure
from roundscope.experiments.train.config import JAX, Config
from roundscope.tools.errors import bad

Plans = tuple[tuple[Plan, ...], ...]  # of each layer, of each head
# plans as data: one table of all layers, or, where structures differ, one for each layer
Tables = HeadPlans | tuple[HeadPlans, ...]
# plans that are part of the program: one for all layers, or one for each layer
Fixed = Plan | tuple[Plan, ...]
Planned = Tables | Fixed | None  # None: JAX's own attention


def base(config: Config) -> Plan:
    """Return the preset with the config's sums, unchanged; UsageError for "jax", which is none."""
    if config.plan == JAX:
        raise bad("plan", JAX, "is not emulated and has no events; choose a preset, such as fp32")
    plan = Plan.preset(config.plan)
    return native(plan) if config.sums == "native" else plan


def uniform(config: Config, plan: Plan | None = None) -> Tables | None:
    """Return one plan (the base) for all layers and heads; None for plan = "jax"."""
    if config.plan == JAX:
        return None
    return by_layer([[plan or base(config)] * config.heads] * config.layers)


def by_layer(plans: Sequence[Sequence[Plan]]) -> Tables:
    """Return plans[layer][head] as a table (layers, heads, rows, FIELDS, 2).

    Where layers have different structures, each has its own table (heads, rows, FIELDS, 2). Raises
    ValueError for heads of one layer that have.
    """
    each = tuple(head_plans(layer) for layer in plans)
    if len({own.like for own in each}) > 1:
        return each
    return HeadPlans(each[0].like, np.stack([own.table for own in each]))


def by_arm(plans: Sequence[Tables | None]) -> Tables | None:
    """Return plans as one table of arms; None if all are. ValueError for two structures."""
    given = [p for p in plans if p is not None]
    if not given:
        return None
    if len(given) < len(plans) or len({jax.tree.structure(p) for p in given}) > 1:
        raise ValueError(
            "arms: their plans differ in more than formats, modes and seeds; run them separately"
        )
    together: Tables = jax.tree.map(lambda *tables: np.stack(tables), *given)
    return together


def structures(plans: Plans) -> Hashable:
    """Return what of the plans of layers is compiled: the structure of each layer."""
    return tuple(structure(row[0]) for row in plans)


def likes(tables: Tables) -> tuple[Plan, ...]:
    """Return the structures that tables have, one for all layers or one for each."""
    return tuple(map(like_of, tables if isinstance(tables, tuple) else (tables,)))


def like_of(plans: HeadPlans | Plan) -> Plan:
    """Return the part of plans that is compiled: a structure, or a whole plan."""
    return plans.like if isinstance(plans, HeadPlans) else plans


def stretches(plans: Planned, layers: int) -> Iterator[tuple[slice, HeadPlans | Plan | None]]:
    """Yield consecutive layers of one structure, with their plans as a table or one plan."""
    if not isinstance(plans, tuple):
        yield slice(0, layers), plans
        return
    first = 0
    for like, some in groupby(plans, like_of):
        own = list(some)
        tables = [p.table for p in own if isinstance(p, HeadPlans)]
        yield (
            slice(first, first + len(own)),
            HeadPlans(like, jnp.stack(tables)) if tables else like,
        )
        first += len(own)


def over_layers(one: Callable[..., Any], tables: Tables, *arrays: Any) -> Any:
    """Return one(plans of a layer, its entries of the arrays) of all layers, stacked."""
    if isinstance(tables, HeadPlans):
        like = tables.like

        def mapped(table: Any, *own: Any) -> Any:
            return one(HeadPlans(like, table), *own)

        return jax.vmap(mapped)(jnp.asarray(tables.table), *arrays)
    each = [one(own, *(x[n] for x in arrays)) for n, own in enumerate(tables)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
