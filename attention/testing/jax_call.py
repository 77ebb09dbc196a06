"""Calls of a function of JAX arrays, forward and backward."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs

if TYPE_CHECKING:
    from roundscope.attention.testing.user import Convention

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def called(
    attention: Attention, x: Inputs, dtype: str = "bfloat16", layout: str = "BTNH"
) -> Outputs:
    """Return the outputs of one compiled call, and the gradients of its three arguments."""

    @jax.jit
    def both(
        q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        out, pull = jax.vjp(attention, q, k, v)
        dq, dk, dv = pull(do.astype(out.dtype))
        return out, dq, dk, dv

    tensors = (given(a, dtype, layout) for a in (x.q, x.k, x.v, x.do))
    out, dq, dk, dv = (array(a, layout) for a in both(*tensors))
    return Outputs(out=out, dq=dq, dk=dk, dv=dv)


def given(x: np.ndarray, dtype: str, layout: str) -> jax.Array:
    """Return a float32 array (B, T, N, H) as an array of a type and a layout."""
    return jnp.asarray(x.swapaxes(1, 2) if layout == "BNTH" else x, dtype)


def array(x: jax.Array, layout: str) -> np.ndarray:
    """Return an array of a layout as a float32 array (B, T, N, H)."""
    a = np.asarray(x.astype(jnp.float32))
    return np.ascontiguousarray(a.swapaxes(1, 2) if layout == "BNTH" else a)


def run(function: Callable[..., Any], c: "Convention", x: Inputs) -> Outputs:
    """Return the outputs of a user's function."""
    options = c.options(x)
    if x.mask is not None:
        options[c.names["mask"]] = jnp.asarray(x.mask)
    if c.is_own_backward:
        q, k, v, do = (given(a, c.dtype, c.layout) for a in (x.q, x.k, x.v, x.do))
        results = function(q, k, v, **options | {c.names["do"]: do})
        out, dq, dk, dv = (array(a, c.layout) for a in results)
        return Outputs(out=out, dq=dq, dk=dk, dv=dv)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        result = function(q, k, v, **options)
        out: jax.Array = result[0] if isinstance(result, (tuple, list)) else result
        return out

    if c.backward:
        return called(attention, x, c.dtype, c.layout)
    q, k, v = (given(a, c.dtype, c.layout) for a in (x.q, x.k, x.v))
    return Outputs(out=array(jax.jit(attention)(q, k, v), c.layout))
