"""Sleef's expf against torch, whose vectorized silu is x / (1 + expf(-x)) in binary32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.instructions.sleef import sleef_expf

ARGUMENTS = np.concatenate(
    [
        np.random.default_rng(3).normal(size=40_000) * 12.0,
        np.linspace(-110.0, 95.0, 40_000),
        [0.0, -0.0, 1e-30, -1e-40, 88.72, 88.73, -87.34, -103.9, -104.1, np.inf, -np.inf, np.nan],
    ]
).astype(np.float32)


def test_silu_of_torch_has_its_bits():
    """A multiply-add of two roundings, another constant, an exponent that is wrong at a tie."""
    torch = pytest.importorskip("torch")
    found = torch.backends.cpu.get_cpu_capability()
    if found not in ("AVX2", "AVX512"):
        pytest.skip(f"torch calls the functions of {found}")
    with np.errstate(all="ignore"):
        e = sleef_expf(numpy_ops(), -ARGUMENTS.astype(np.float64)).astype(np.float32)
        own = ARGUMENTS / (np.float32(1.0) + e)
    assert np.array_equal(
        own, torch.nn.functional.silu(torch.from_numpy(ARGUMENTS)).numpy(), equal_nan=True
    )


def test_jax_has_the_same_bits():
    """A subnormal result that XLA flushes."""
    x = ARGUMENTS.astype(np.float64)
    with jax.enable_x64(True):
        found = jax.jit(lambda x: sleef_expf(xla_ops(opaque_zero(x)), x))(jnp.asarray(x))
        found = np.asarray(found)
    with np.errstate(all="ignore"):
        assert np.array_equal(found, sleef_expf(numpy_ops(), x), equal_nan=True)


def test_it_is_within_an_ulp():
    """A constant that both engines have wrong."""
    x = ARGUMENTS[np.abs(ARGUMENTS) < 80.0].astype(np.float64)
    exact = np.exp(x)
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(sleef_expf(numpy_ops(), x) - exact) <= ulp).all()
