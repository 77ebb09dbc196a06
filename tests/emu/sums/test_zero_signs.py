"""The sign of a sum that is zero, compiled: 0 + (-0) is +0."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.sums.accumulator import Accumulator, Order
from tests.some import some

ORDERS = [
    Accumulator(order=o, chunk=2)
    for o in (Order.ASCENDING, Order.PAIRWISE, Order.HALVES, Order.CHUNKED, Order.EXACT)
]
ORDERS += [
    Accumulator(step=emu.BF16),
    Accumulator(order=Order.PAIRWISE, step=emu.rounding("bf16", "toward-negative")),
    Accumulator(step=emu.BINARY64),
]


@pytest.mark.parametrize(
    ("accumulator", "count"), some(itertools.product(ORDERS, (1, 2, 3))), ids=str
)
def test_a_sum_from_zero_of_negative_zeros(accumulator: Accumulator, count: int) -> None:
    """XLA took 0 + x for x where it knew the 0: sums of -0 were -0 under jit, +0 elsewhere."""
    a, b = np.full((2, count), -0.0, np.float32), np.ones((count, 3), np.float32)
    compiled = jax.jit(lambda a, b: emu.dot(a, b, accumulator))
    for found in (
        emu.dot(a, b, accumulator),
        emu.dot(jnp.asarray(a), jnp.asarray(b), accumulator),
        compiled(a, b),
    ):
        assert not np.signbit(np.asarray(found)).any()


@pytest.mark.parametrize("order", [Order.ASCENDING, Order.PAIRWISE, Order.HALVES])
def test_from_a_negative_zero_it_stays_one(order: Order) -> None:
    """A first term replaced by +0."""
    a = np.full((2, 2), -0.0, np.float32)
    b = np.ones((2, 3), np.float32)
    init = np.full((2, 3), -0.0)
    accumulator = Accumulator(order=order)
    compiled = jax.jit(lambda a, b: emu.dot(a, b, accumulator, init))
    for found in (emu.dot(a, b, accumulator, init), compiled(a, b)):
        assert np.signbit(np.asarray(found)).all()


def test_blocks_start_from_zero_too() -> None:
    """The total of blocks with binary32 scales."""
    f = emu.BlockFormat(
        element=emu.E4M3, size=4, scale=emu.format_named("fp32"), rule=emu.ScaleRule.NEAREST
    )
    a = emu.to_blocks(np.full((2, 4), -1e-30, np.float32) * [1, 0, 0, 0], f, axis=1)
    b = emu.to_blocks(np.zeros((4, 3), np.float32), f, axis=0)

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        from dataclasses import replace

        return emu.dot(replace(a, elements=x), replace(b, elements=y))

    found = jax.jit(run)(jnp.asarray(a.elements), jnp.asarray(b.elements))
    assert np.array_equal(np.signbit(np.asarray(found)), np.signbit(emu.dot(a, b)))
