"""The approximate instructions of a GPU and CUDA's expf inside a kernel, or their model in an
interpreted kernel.

The model is `emu.instructions`. For each instruction and for expf it gives the same result as an
H200 for all 2^32 arguments (`python -m tests.checks.gpu_instructions`, which runs what CUDA's
compiler makes of expf; the text here has the same steps).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.backends.kernels.convert import Assembler, by_triton, instruction
from roundscope.emu.instructions.approximate import ex2, expf, lg2, rcp

EXPF = """{ .reg .f32 t, n, r, y; .reg .b32 power;
    fma.rn.sat.f32 t, $1, 0f3BBB989D, 0f3F000000; fma.rm.f32 n, t, 0f437C0000, 0f4B400001;
    mov.b32 power, n; shl.b32 power, power, 23; mov.b32 y, power;
    add.rn.f32 n, n, 0fCB40007F; neg.f32 n, n;
    fma.rn.f32 r, $1, 0f3FB8AA3B, n; fma.rn.f32 r, $1, 0f32A57060, r;
    ex2.approx.ftz.f32 r, r; mul.rn.f32 $0, r, y; }"""  # the steps of `approximate.expf`
PTX = {
    ex2: "ex2.approx.ftz.f32 $0, $1;",
    rcp: "rcp.approx.ftz.f32 $0, $1;",
    lg2: "lg2.approx.ftz.f32 $0, $1;",
    expf: EXPF,
}
Instructions = Mapping[Callable[..., Any], Callable[[Array], Array]]


def instructions(on_gpu: bool, by: Assembler = by_triton) -> Instructions:
    """Return a function for each instruction, of arrays of the machine's type for binary32."""
    return {f: partial(_own, text, by) if on_gpu else partial(_model, f) for f, text in PTX.items()}


def _own(text: str, by: Assembler, x: Array) -> Array:
    """Return the result of the GPU's instructions."""
    return instruction(text, jnp.float32, x, by=by)


def _model(f: Callable[..., Any], x: Array) -> Array:
    """Return the result of the model, which NumPy computes on float64 numbers.

    NumPy computes it because an interpreted kernel cannot hold the table of coefficients. The
    numbers pass to NumPy and back as words of 32 bits, because a callback has no 64-bit types if
    its caller has none.
    """
    words = lax.bitcast_convert_type(x, jnp.int32)
    results = jax.pure_callback(
        partial(_of_words, f),
        jax.ShapeDtypeStruct(words.shape, jnp.int32),
        words,
        vmap_method="expand_dims",
    )
    return lax.bitcast_convert_type(results, x.dtype)


def _of_words(f: Callable[..., Any], words: Any) -> np.ndarray:
    from roundscope.emu.backends.numba.ops import numpy_ops

    x = np.ascontiguousarray(words).view(np.float64)
    y: np.ndarray = np.ascontiguousarray(f(numpy_ops(), x), np.float64).view(np.int32)
    return y
