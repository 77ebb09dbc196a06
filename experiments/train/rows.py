"""Rows of causal attention in exact arithmetic, and their part in the gradient of W_Q."""

import jax
import jax.numpy as jnp
from jax import Array


def drift(
    scale: float, rows: Array, q: Array, k: Array, dq: Array, x: Array
) -> tuple[Array, Array]:
    """Return (|R|, |dW_Q|) of every head: the part of dW_Q from sums of dS's rows, and the whole.

    rows   (heads, T): the sums;  x (heads, T, D): what W_Q reads

    R = scale sum_t rows[t] x[t]^T PK[t].
    """
    pk = jnp.einsum("nts,nsh->nth", softmax(scale, q, k), k)
    made = jnp.einsum("nt,ntd,nth->ndh", scale * rows, x.astype(pk.dtype), pk)
    whole = jnp.einsum("ntd,nth->ndh", x.astype(pk.dtype), dq)
    return jnp.linalg.norm(made, axis=(1, 2)), jnp.linalg.norm(whole, axis=(1, 2))


def softmax(scale: float, q: Array, k: Array) -> Array:
    """Return causal P, (heads, T, T)."""
    s = scale * jnp.einsum("nth,nsh->nts", q, k)
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(s.shape[1:], bool)), s, -jnp.inf), axis=-1)


def exact_delta(scale: float, q: Array, k: Array, v: Array, do: Array) -> Array:
    """Return rowsum(dO O) of causal attention, (heads, T), in the arrays' own binary64."""
    return (jnp.einsum("nts,nsh->nth", softmax(scale, q, k), v) * do).sum(-1)
