"""The row sums of dS in the GPT's attention, read out of the emulated backward.

A feature of ones appended to K, and of zeros appended to Q, V and dO, changes no other number, and
its dQ is scale times the row sums of dS (rounded as dQ is). They are 0 in exact arithmetic.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.attention import attend
from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear import FULL
from roundscope.experiments.train.gpt.plans import Tables, over_layers
from roundscope.experiments.train.gpt.step import plans_at


class RowSums(NamedTuple):
    """What one arm's attention reads and returns, of all layers and some sequences.

    x        what W_Q reads, (L, B, T, D)
    v        values, (L, B, T, N, H)
    dq       the gradient of q, (L, B, T, N, H)
    r        scale times the row sums of dS, (L, B, T, N)
    pk       P K in float32, (L, B, T, N, H)
    """

    x: Array
    v: Array
    dq: Array
    r: Array
    pk: Array


def row_sums(config: Config, params: Any, tokens: Array, plans: Tables, step: Any) -> RowSums:
    """Return the row sums of dS of one arm at these weights; tokens are (B, T + 1)."""
    plans = plans_at(plans, step) or plans
    do, seen = model.read(params, tokens, plans, config)
    dq, r = over_layers(partial(dq_and_sums, config), plans, seen.q, seen.k, seen.v, do)
    return RowSums(seen.x, seen.v, dq, r, pk(seen.q, seen.k))


def dq_and_sums(
    config: Config, plans: HeadPlans, q: Array, k: Array, v: Array, do: Array
) -> tuple[Array, Array]:
    """Return dQ (B, T, N, H) of one layer, and scale times the row sums of dS (B, T, N).

    Raises ValueError for plans in which a feature of ones does not stay one.
    """
    for name in ("smoothed_keys", "hadamard"):
        if getattr(plans.like, name):
            raise ValueError(f"plans: {name}=True changes the feature of ones; use `gpt.monitor`")

    def wide(x: Array, last: float) -> Array:
        return jnp.concatenate([x, jnp.full_like(x[..., :1], last)], axis=-1)

    k, v, scale = wide(k, 1.0), wide(v, 0.0), config.head_width**-0.5

    options: dict[str, Any] = {"plan": plans, "scale": scale, "is_causal": True}
    options |= {"block_q": config.tile, "block_k": config.tile}

    def run(q: Array) -> Any:
        return attend(q, k, v, **options)

    (dq,) = jax.vjp(run, wide(q, 0.0))[1](wide(do, 0.0))
    return dq[..., :-1], dq[..., -1]


def pk(q: Array, k: Array) -> Array:
    """Return P K of causal attention, (L, B, T, N, H), in float32."""
    s = jnp.einsum("lbtnh,lbsnh->lbnts", q, k, precision=FULL) * jnp.float32(q.shape[-1] ** -0.5)
    p = jax.nn.softmax(jnp.where(jnp.tri(q.shape[2], dtype=bool), s, -jnp.inf), axis=-1)
    return jnp.einsum("lbnts,lbsnh->lbtnh", p, k, precision=FULL)
