"""Calls of a function of JAX arrays (B, T, N, H) in BF16, forward and backward."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def called(attention: Attention, x: Inputs) -> Outputs:
    """Return the outputs of one compiled call, and the gradients of its three arguments."""
    q, k, v, do = (jnp.asarray(a, jnp.bfloat16) for a in (x.q, x.k, x.v, x.do))

    @jax.jit
    def both(
        q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        out, pull = jax.vjp(attention, q, k, v)
        dq, dk, dv = pull(do.astype(out.dtype))
        return out, dq, dk, dv

    out, dq, dk, dv = (np.asarray(a.astype(jnp.float32)) for a in both(q, k, v, do))
    return Outputs(out=out, dq=dq, dk=dk, dv=dv)
