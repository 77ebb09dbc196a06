"""The zero that keeps XLA from fusing a product with an addition, in arrays of few numbers."""

import jax
import numpy as np
import pytest

from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.functions import exp64


@pytest.mark.parametrize("size", [1, 2])
def test_exp_of_few_numbers_has_the_bits_of_exp_of_many(size):
    """Of an array of one number XLA saw that no other is larger, and exp was an ulp off."""
    x = np.random.default_rng(0).uniform(-20, 5, 1000)
    with jax.enable_x64(True):
        exp = jax.jit(lambda x: exp64(xla_ops(opaque_zero(x)), x))
        parts = [np.asarray(exp(part)) for part in np.split(x, len(x) // size)]
        np.testing.assert_array_equal(np.concatenate(parts), np.asarray(exp(x)))
        assert int(opaque_zero(x[:size])) == 0
