"""The plans of a run as data: tables with an axis of layers, and one of arms."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.traced import HeadPlans, common_structure, table_of
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.experiments.errors import bad
from roundscope.experiments.train.config import JAX, Config


def base(config: Config) -> Plan:
    """Return the preset with the config's way to add up, before any change.

    Raises UsageError for plan = "jax", which is no preset.
    """
    if config.plan == JAX:
        raise bad("plan", JAX, "is not emulated and has no events; choose a preset, such as fp32")
    plan = Plan.preset(config.plan)
    return native(plan) if config.sums == "native" else plan


def native(plan: Plan) -> Plan:
    """Return the plan with every sum of products added up by the device, in float32."""
    return replace(
        plan,
        accumulators=tuple(Accumulator(order=Order.NATIVE, step=a.step) for a in plan.accumulators),
    )


def uniform(config: Config, plan: Plan | None = None) -> HeadPlans | None:
    """Return one plan (the base) for all layers and heads; None for plan = "jax"."""
    if config.plan == JAX:
        return None
    return by_layer([[plan or base(config)] * config.heads] * config.layers)


def by_layer(plans: Sequence[Sequence[Plan]]) -> HeadPlans:
    """Return plans[layer][head] as a table (layers, heads, rows, FIELDS, 2).

    Raises ValueError for plans of two structures.
    """
    like = common_structure([plan for layer in plans for plan in layer])
    return HeadPlans(
        like, np.stack([np.stack([table_of(plan) for plan in layer]) for layer in plans])
    )


def by_arm(plans: Sequence[HeadPlans | None]) -> HeadPlans | None:
    """Return the plans of arms as one table with a leading axis of arms.

    None (plan = "jax") only if all are None. Raises ValueError for plans of two structures.
    """
    given = [p for p in plans if p is not None]
    if not given:
        return None
    if len(given) < len(plans) or len({p.like for p in given}) > 1:
        raise ValueError(
            "arms: their plans differ in more than formats, modes and seeds; run them separately"
        )
    return HeadPlans(given[0].like, np.stack([p.table for p in given]))
