"""How a Hopper GPU adds up: the accumulators that the twins of its kernels share.

Its tensor cores compute products of matrices; rows are added up by warps, and delta by threads that
read eight numbers at a time.
"""

from dataclasses import replace

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import FACTORS
from roundscope.emu.sums.accumulator import Accumulator, Order

HOPPER = Accumulator.tensor_core("hopper", "bf16")
"""A tensor core that adds 16 products of BF16 numbers at a time."""
EIGHTS = replace(HOPPER, chunk=8)
"""The same tensor core under the instruction mma.m16n8k8, which takes 8 products at a time."""
WARP = Accumulator(order=Order.STRIDED, chunk=32)
"""A warp of threads, which adds up a row in 32 lanes."""


def octets(lanes: int) -> Accumulator:
    """Return the accumulator by which kernels add up delta.

    Several threads each read eight BF16 numbers at a time.
    """
    return Accumulator(order=Order.OCTETS, chunk=lanes)


def octet_pairs(lanes: int) -> Accumulator:
    """Return the same accumulator where the threads exchange their sums with neighbors first."""
    return Accumulator(order=Order.OCTET_PAIRS, chunk=lanes)


def on_hopper(plan: Plan, core: Accumulator = HOPPER) -> Plan:
    """Return the plan with every product of matrices on the given tensor cores."""
    for site in FACTORS:
        plan = plan.adding(site, core)
    return plan
