"""Calls of a function of JAX arrays, forward and backward."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs, first_of, parts_of, sums_of
from roundscope.emu.testing.foreign import ForeignError

if TYPE_CHECKING:
    from roundscope.attention.testing.foreign.user import Convention


def called(
    function: Callable[..., Any],
    x: Inputs,
    options: dict[str, Any],
    dtype: str = "bfloat16",
    layout: str = "BTNH",
    backward: bool = True,
    **arrays: Any,
) -> Outputs:
    """Return the outputs of one compiled call, and the gradients of its three arguments.

    Args:
        function: The function of q, k and v, which may return a tuple that begins with the output.
        x: The inputs.
        options: Keywords of the function that are fixed when it is compiled.
        dtype: The type of its inputs.
        layout: The order of the axes of its arrays.
        backward: Whether gradients are wanted.
        arrays: Keywords of the function that are arrays.
    """
    compiled = _compiled(function, tuple(options.items()), backward)
    tensors = (given(a, dtype, layout) for a in (x.q, x.k, x.v, x.do))
    found, sums = compiled(*tensors, arrays)
    results = (array(a, layout) for a in found)
    lse = sums_of((None, *sums), x)
    return Outputs(
        lse=None if lse is None else np.asarray(lse.astype(jnp.float32)),
        **dict(zip(("out", "dq", "dk", "dv"), results, strict=False)),
    )


@functools.lru_cache(maxsize=64)
def _compiled(
    function: Callable[..., Any], options: tuple[tuple[str, Any], ...], backward: bool
) -> Callable[..., tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]]:
    """Return the jitted function of q, k, v, do and arrays; it compiles once for each shape.

    It returns the output with the gradients, and what the function returns behind the output.
    """

    def both(
        q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, arrays: dict[str, jax.Array]
    ) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
        def attention(
            q: jax.Array, k: jax.Array, v: jax.Array
        ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            result = function(q, k, v, **dict(options), **arrays)
            out: jax.Array = first_of(result)
            more = result[1:2] if isinstance(result, (tuple, list)) else ()
            return out, tuple(a for a in more if isinstance(a, jax.Array))

        if not backward:
            out, sums = attention(q, k, v)
            return (out,), sums
        out, pull, sums = jax.vjp(attention, q, k, v, has_aux=True)
        return (out, *pull(do.astype(out.dtype))), sums

    return jax.jit(both)


def given(x: np.ndarray, dtype: str, layout: str) -> jax.Array:
    """Return a float32 array (B, T, N, H) as an array of a type and a layout."""
    return jnp.asarray(x.swapaxes(1, 2) if layout == "BNTH" else x, dtype)


def array(x: jax.Array, layout: str) -> np.ndarray:
    """Return an array of a layout as a float32 array (B, T, N, H)."""
    if jnp.iscomplexobj(x) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ForeignError("kernel", f"returned an array of {x.dtype}; return real floats")
    if x.ndim != 4:
        raise ForeignError("kernel", f"returned shape {x.shape}, must have four axes")
    a = np.asarray(x.astype(jnp.float32))
    return np.ascontiguousarray(a.swapaxes(1, 2) if layout == "BNTH" else a)


def run(function: Callable[..., Any], c: "Convention", x: Inputs) -> Outputs:
    """Return the outputs of a user's function."""
    options = c.options(x)
    masks = {} if x.mask is None else {c.names["mask"]: jnp.asarray(x.mask)}
    if c.is_own_backward:
        q, k, v, do = (given(a, c.dtype, c.layout) for a in (x.q, x.k, x.v, x.do))
        results = parts_of(function(q, k, v, **options, **masks, **{c.names["do"]: do}))
        out, dq, dk, dv = (array(a, c.layout) for a in results)
        return Outputs(out=out, dq=dq, dk=dk, dv=dv)

    return called(function, x, options, c.dtype, c.layout, c.backward, **masks)
