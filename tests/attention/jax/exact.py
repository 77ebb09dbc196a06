"""Attention and its gradients by formula, in NumPy and binary64; and kernels with a known fault."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def probabilities(q, k, scale, is_causal, mask=None):
    """Return P (B, N, T, S) of q (B, T, N, H) and k (B, S, N, H)."""
    scores = scale * np.einsum("btnh,bsnh->bnts", q, k)
    seen = np.tri(*scores.shape[2:], dtype=bool) if is_causal else np.ones(scores.shape[2:], bool)
    seen = seen if mask is None else seen & mask
    e = np.where(seen, np.exp(scores - np.where(seen, scores, -np.inf).max(-1, keepdims=True)), 0)
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, do, *, scale=None, is_causal=False, mask=None, error=0.0):
    """Return out, dq, dk and dv, layout BTNH, of arrays with equal heads.

    error (B, N, T): what is added to delta.
    """
    q, k, v, do = (np.asarray(x, np.float64) for x in (q, k, v, do))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    p = probabilities(q, k, scale, is_causal, mask)
    dp = np.einsum("btnh,bsnh->bnts", do, v)
    ds = p * (dp - ((p * dp).sum(-1) + error)[..., None])
    return (
        np.einsum("bnts,bsnh->btnh", p, v),
        scale * np.einsum("bnts,bsnh->btnh", ds, k),
        scale * np.einsum("bnts,btnh->bsnh", ds, q),
        np.einsum("bnts,btnh->bsnh", p, do),
    )


def error_of(do, size):
    """Return an error of delta (B, N, T), which depends on dO, so that no row has the same."""
    return size * (abs(do).mean(-1) + 0.5).swapaxes(1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _faulty(q, k, v, scale, is_causal, size):
    return _forward(q, k, v, scale, is_causal, size)[0]


def _forward(q, k, v, scale, is_causal, size):
    group = q.shape[2] // k.shape[2]
    wide_k, wide_v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    scores = scale * jnp.einsum("btnh,bsnh->bnts", q, wide_k)
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[2:], dtype=bool), scores, -jnp.inf)
    p = jax.nn.softmax(scores)
    return jnp.einsum("bnts,bsnh->btnh", p, wide_v), (q, k, v, p)


def _backward(scale, is_causal, size, kept, do):
    q, k, v, p = kept
    heads, group = k.shape[2], q.shape[2] // k.shape[2]
    wide_k, wide_v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    dp = jnp.einsum("btnh,bsnh->bnts", do, wide_v)
    # of the features of dO that the probe adds, which are 0, only the number must not matter
    own = do[..., :8]
    delta = (p * dp).sum(-1) + error_of(own, size)
    ds = p * (dp - delta[..., None])
    dq = scale * jnp.einsum("bnts,bsnh->btnh", ds, wide_k)
    dk = scale * jnp.einsum("bnts,btnh->bsnh", ds, q)
    dv = jnp.einsum("bnts,btnh->bsnh", p, do)
    return dq, *(x.reshape(*x.shape[:2], heads, group, -1).sum(3) for x in (dk, dv))


_faulty.defvjp(_forward, _backward)


def faulty(size):
    """Return attention of 8 features of V, whose backward adds `error_of(do, size)` to delta."""

    def attention(q, k, v, *, scale=None, is_causal=False):
        return _faulty(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, is_causal, size)

    return attention


def faulty_without_scale(size):
    """Return the same without arguments: causal, its scale 1 / sqrt(H)."""

    def attention(q, k, v):
        return _faulty(q, k, v, q.shape[-1] ** -0.5, True, size)

    return attention
