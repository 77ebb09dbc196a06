"""The drift of the plans of real kernels, read out of fused kernels, which keep no record of these.

As in `gpt.row_sums`: one more feature is 1 in K and 0 in Q, V and dO. It changes no other number,
and its dQ is scale times the row sums of dS. Kernels have powers of two of features, so there are
as many zeros as are needed. The events of dQ are FP32 in this look: they round its sums over keys,
and not dS.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention import Plan, Site, attend
from roundscope.emu.roundings.modes import BINARY32, BINARY64
from roundscope.experiments.train.config import Config

NAMES = "drift", "w_q_gradient", "v_skew"


def is_wide(plan: Plan) -> bool:
    """Return whether no event of a plan has fewer bits than FP32: its drift is FP32's rounding."""
    return all(plan[site] in (BINARY32, BINARY64) for site in Site)


def drift_of(config: Config, plans: tuple[Plan, ...], seen: Any, x: Array) -> dict[str, np.ndarray]:
    """Return |R| / |dW_Q|, |dW_Q| and the skew of V of every head, (A, L, N) each.

    plans  of layers;  seen: q, k, v, dO (A, L, 1, T, N, H);  x (A, L, 1, T, D): what W_Q reads
    """
    layers = [
        _of_layer(config, plan)(*(y[:, n, 0] for y in (*seen, x))) for n, plan in enumerate(plans)
    ]
    each = (np.stack([np.asarray(y) for y in own], 1) for own in zip(*layers, strict=True))
    return dict(zip(NAMES, each, strict=True))


@lru_cache(64)
def _of_layer(config: Config, plan: Plan) -> Any:
    """Return the jitted function of q, k, v, dO (A, T, N, H) and x (A, T, D) of a layer."""
    for site in (Site.DQP, Site.DQ, Site.DQ_OUT):
        plan = plan.at(site, BINARY32)
    scale = config.head_width**-0.5
    options: dict[str, Any] = {"plan": plan, "scale": scale, "is_causal": True, "engine": "pallas"}
    options |= {"block_q": config.tile, "block_k": config.tile}

    def of_layer(q: Array, k: Array, v: Array, do: Array, x: Array) -> tuple[Array, ...]:
        dq, sums = _dq_and_sums(options, q, k, v, do)
        with jax.default_matmul_precision("highest"):
            return (*_drift(scale, sums, q, k, dq, x), jnp.abs(jnp.sign(v).mean(1)).mean(-1))

    return jax.jit(of_layer)


def _dq_and_sums(
    options: dict[str, Any], q: Array, k: Array, v: Array, do: Array
) -> tuple[Array, Array]:
    """Return dQ (A, T, N, H), and scale times the row sums of dS (A, T, N)."""
    features = q.shape[-1]
    more = (1 << features.bit_length()) - features - 1

    def wide(y: Array, last: float) -> Array:
        zeros = jnp.zeros((*y.shape[:-1], more), y.dtype)
        return jnp.concatenate([y, jnp.full_like(y[..., :1], last), zeros], axis=-1)

    k, v = wide(k, 1.0), wide(v, 0.0)
    _, back = jax.vjp(lambda q: attend(q, k, v, **options), wide(q, 0.0))
    (dq,) = back(wide(do, 0.0))
    return dq[..., :features], dq[..., features]


def _drift(
    scale: float, sums: Array, q: Array, k: Array, dq: Array, x: Array
) -> tuple[Array, Array]:
    """Return |R| / |dW_Q| and |dW_Q|, (A, N), as `monitor.drift` defines them."""
    s = jnp.asarray(scale, q.dtype) * jnp.einsum("atnh,asnh->ants", q, k)
    p = jax.nn.softmax(jnp.where(jnp.tri(q.shape[1], dtype=bool), s, -jnp.inf), axis=-1)
    pk = jnp.einsum("ants,asnh->atnh", p, k)
    x = x.astype(q.dtype)
    made, whole = (
        jnp.linalg.norm(jnp.einsum("atd,atnh->andh", x, y), axis=(2, 3))
        for y in (sums[..., None] * pk, dq)
    )
    return jnp.where(whole > 0, made / whole, jnp.zeros_like(whole)), whole
