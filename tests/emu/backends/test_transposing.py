"""Functions without their transpositions: the same numbers, and none left."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu.backends.kernels import marks
from roundscope.emu.backends.kernels.held import FP64, Held
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import kernel_machine
from roundscope.emu.backends.kernels.transposing import untransposed
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import BF16, BINARY32
from roundscope.emu.sums.accumulator import Accumulator

CORE = Accumulator.tensor_core("hopper", "bf16")


def numbers(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).integers(-64, 64, shape) / 16.0)


def scores(q, k, row, mask):
    """What a tile does: a product, a mask, a row taken away, an exp, roundings, a constant."""
    s = marks.total(CORE, q, k.T, jnp.zeros((q.shape[0], k.shape[0])))
    s = jnp.where(mask, marks.product(s, 0.125), -jnp.inf)
    x = marks.round_event(s - jnp.maximum(row, 1.0)[:, None], BF16)
    seen = jnp.arange(float(k.shape[0]))[None, :] < row[:, None] + 8.0
    return jnp.where(seen, marks.round_event(marks.function(exp64, x), BINARY32), 0.0)


def primitives(f, *x):
    return [eqn.primitive.name for eqn in jax.make_jaxpr(f)(*x).jaxpr.eqns]


@pytest.mark.thorough
def test_the_transpose_is_that_of_the_numbers():
    """A broadcast along the wrong axis, a product of the wrong factors, a mask or a row that is not
    turned; each once, and no mark left.
    """
    with jax.enable_x64(True):
        q = numbers(1, 8, 16)
        k = numbers(2, 32, 16)
        row = numbers(3, 8)
        mask = numbers(4, 8, 32) > 0.0
        machine = kernel_machine(jnp.int64(0), {}, on_gpu=False)

        def run(f):
            return narrowed(machine, lambda *x: ((f(*x),), {}), [FP64])(*args)[0][0]

        args = *(Held(array=x, format=FP64) for x in (q, k, row)), mask
        turned = untransposed(lambda *x: marks.transposed(scores(*x)))
        assert np.array_equal(run(turned), run(scores).T)
        found = primitives(turned, q, k, row, mask)
        assert "transposed" not in found
        assert [found.count(name) for name in ("sum_of_products", "function")] == [1, 1]


def test_what_nobody_asks_for_is_not_computed():
    """And what is asked for both ways round is computed twice, not four times."""
    with jax.enable_x64(True):
        x = numbers(5, 4, 8)

        def f(x):
            y = marks.round_event(x * x, BF16)
            _ = marks.round_event(x + x, BF16)
            return marks.transposed(y) + 1.0, marks.transposed(y) * 2.0, y

        assert primitives(untransposed(f), x).count("round_event") == 2


def test_what_it_cannot_turn_it_says():
    with pytest.raises(NotImplementedError, match="the transpose of what cumsum makes"):
        jax.make_jaxpr(untransposed(lambda x: jnp.transpose(jnp.cumsum(x, axis=0))))(
            jnp.ones((2, 3))
        )
