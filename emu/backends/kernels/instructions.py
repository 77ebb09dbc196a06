"""The approximate instructions of a GPU inside a kernel: there the GPU's own, and where a kernel is interpreted their model.

`emu.instructions` is that model; 0 of all 2^32 arguments of each differ from an H200's (`python -m tests.checks.gpu_instructions`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.backends.kernels.convert import instruction
from roundscope.emu.instructions.approximate import ex2, lg2, rcp

PTX = {ex2: "ex2.approx.ftz.f32", rcp: "rcp.approx.ftz.f32", lg2: "lg2.approx.ftz.f32"}
Instructions = Mapping[Callable[..., Any], Callable[[Array], Array]]


def instructions(on_gpu: bool) -> Instructions:
    """Return what computes each instruction, of arrays of the machine's type for binary32."""
    return {f: partial(_own, text) if on_gpu else partial(_model, f) for f, text in PTX.items()}


def _own(text: str, x: Array) -> Array:
    return instruction(f"{text} $0, $1;", jnp.float32, x)


def _model(f: Callable[..., Any], x: Array) -> Array:
    """By NumPy: an interpreted kernel may hold no table of coefficients."""
    from roundscope.emu.backends.numba.ops import numpy_ops

    compute = lambda y: np.asarray(f(numpy_ops(), np.asarray(y, np.float64)), x.dtype)  # noqa: E731
    found: Array = jax.pure_callback(compute, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")
    return found
