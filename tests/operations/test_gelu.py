"""gelu in both forms: torch's and transformers' bits on a CPU, and functions of other libraries."""

import math
from functools import partial

import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.instructions import error_function
from roundscope.emu.instructions.error_function import erf64
from roundscope.operations import run
from tests.operations.by_torch import every_type, numbers, shares_of_gradients, torch_of


def drawn(torch, dtype):
    """Numbers of all sizes whose gelu is no subnormal number, which oneDNN flushes in BF16."""
    generator = torch.Generator().manual_seed(2)
    x = torch.cat([s * torch.randn(40, 128, generator=generator) for s in (0.01, 0.3, 2.0)])
    return x.to(dtype)


def compared(plan, operation, function, x):
    out = numbers(function(x))
    found = run(operation, plan, {"x": numbers(x)}).outputs["out"].astype(np.float32)
    shares = shares_of_gradients(operation, plan, function, {"x": x})
    return float((found == out).mean()), shares["x"]


@every_type
def test_every_bit_of_torch(suffix):
    """Another erf or tanh, a multiply-add elsewhere, a slope of another exponential."""
    torch, dtype = torch_of(suffix, "AVX512")
    x, gelu = drawn(torch, dtype), torch.nn.functional.gelu
    tanh = partial(gelu, approximate="tanh")
    name = "torch-cpu-native" if suffix == "-fp16" else "torch-cpu"
    assert compared(name + suffix, "gelu", gelu, x) == (1.0, 1.0)
    assert compared(f"torch-cpu{suffix}", "gelu_tanh", tanh, x) == (1.0, 1.0)


@every_type
def test_every_bit_of_torch_without_onednn(suffix):
    """The polynomial of Abramowitz and Stegun, whose error is another one."""
    torch, dtype = torch_of(suffix)
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        gelu = torch.nn.functional.gelu
        plan = f"torch-cpu-native{suffix}"
        assert compared(plan, "gelu", gelu, drawn(torch, dtype)) == (1.0, 1.0)


@every_type
def test_every_bit_of_transformers(suffix):
    """A step that is not rounded to the type of x, such as x^3 in FP16."""
    torch, dtype = torch_of(suffix)
    activations = pytest.importorskip("transformers.activations")
    x = drawn(torch, dtype)
    out, dx = compared(f"transformers-new{suffix}", "gelu_tanh", activations.NewGELUActivation(), x)
    assert out >= (0.999 if suffix == "-fp32" else 1.0)  # the tanh of another library
    assert dx >= {"": 1.0, "-fp16": 0.999, "-fp32": 0.998}[suffix]


def test_erf_to_binary64():
    """A series or a fraction that ends too early, and special values."""
    x = np.concatenate([np.linspace(-7.0, 7.0, 4001), 10.0 ** np.arange(-300, 0, 7)])
    found, wanted = erf64(numpy_ops(), x), np.vectorize(math.erf)(x)
    assert np.all(np.abs(found - wanted) <= 6 * np.spacing(np.abs(wanted)))
    special = erf64(numpy_ops(), np.array([np.inf, -np.inf, 0.0, -0.0]))
    assert special.tolist() == [1.0, -1.0, 0.0, 0.0] and np.signbit(special[3])


@pytest.mark.parametrize("name", ["erff", "erff_of_libdevice", "erf_by_vectors"])
def test_error_functions_are_near(name):
    """A coefficient of another power; NaN and infinities. CUDA says 2 ulps of erff."""
    x = np.linspace(-6.0, 6.0, 20001, dtype=np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        found = getattr(error_function, name)(numpy_ops(), np.append(x, [np.inf, -np.inf, np.nan]))
    wanted = np.vectorize(math.erf)(x)
    limit = 2.0 * np.spacing(np.abs(wanted).astype(np.float32))
    if name == "erf_by_vectors":  # the formula's own error, and seven steps on numbers below 2
        limit = 1.5e-7 + 7 * 2.0**-24
    assert np.all(np.abs(found[:-3] - wanted) <= limit)
    assert found[-3:-1].tolist() == [1.0, -1.0] and np.isnan(found[-1])
