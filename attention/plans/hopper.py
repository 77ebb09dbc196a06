"""How a Hopper GPU adds up: products of matrices on its tensor cores, and delta by threads that
read eight numbers at a time.
"""

from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import FACTORS
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import tensor_core

HOPPER = tensor_core("hopper", "bf16")
EIGHTS = replace(HOPPER, chunk=8)
"""The same tensor core under mma.m16n8k8, whose sums take 8 products at a time."""


def octets(lanes: int) -> Accumulator:
    """Return the accumulator of threads that read eight BF16 numbers at a time, as kernels add up
    delta.
    """
    return Accumulator(order=Order.OCTETS, chunk=lanes)


def on_hopper(plan: Plan, core: Accumulator = HOPPER) -> Plan:
    """The plan with every product of matrices on tensor cores."""
    for site in FACTORS:
        plan = plan.adding(site, core)
    return plan
