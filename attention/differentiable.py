"""`attend` under JAX transformations: the emulated backward as the derivative, by `jax.custom_vjp`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention import xla_engine as run
from attention.attend import mask_to_heads, result_type
from attention.head import Setup
from attention.sites import Site
from attention.traced_plan import HeadPlans


def attend_xla(setup: Setup, plans: HeadPlans | None, q: Any, k: Any, v: Any, mask: Any) -> Array:
    """The output (B, T, N, H). Inputs narrower than float32 are cast outside, so their gradients are cast back by JAX."""
    dtype = result_type(q, k, v)
    with jax.enable_x64(dtype == jnp.float64 or bool(jax.config.read("jax_enable_x64"))):
        q, k, v = (jnp.asarray(x).astype(dtype) for x in (q, k, v))
    each = None if plans is None else run.by_head(plans, q.shape[0])
    return _attend(setup, each, q, k, v, mask_to_heads(setup, mask, q.shape[0], q.shape[2]))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(setup: Setup, each: run.Each | None, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    return _forward(setup, each, q, k, v, mask)[0]


def _forward(setup: Setup, each: run.Each | None, q: Array, k: Array, v: Array, mask: Array | None) -> tuple[Array, Any]:
    rounded = [
        run.round_inputs(setup, site, run.enter(x, block), each)[0]
        for site, x, block in ((Site.Q, q, setup.block_q), (Site.K, k, setup.block_k), (Site.V, v, setup.block_k))
    ]
    (out, wide, lse), _ = run.forward(setup, *rounded, mask, each)
    result = run.leave(out, q.shape[0], setup.queries, q.dtype)
    return result, (each, *rounded, mask, out, wide, lse)


def _backward(setup: Setup, residuals: Any, do: Array) -> tuple[None, Array, Array, Array, None]:
    each, q, k, v, mask, out, wide, lse = residuals
    b = do.shape[0]
    do_heads, _ = run.round_inputs(setup, Site.DO, run.enter(do, setup.block_q), each)
    (dq, dk, dv, _), _ = run.backward(setup, q, k, v, mask, out, wide, lse, do_heads, each)
    sizes = setup.queries, setup.keys, setup.keys
    gradients = (run.leave(x, b, size, do.dtype) for x, size in zip((dq, dk, dv), sizes, strict=True))
    return (None, *gradients, None)  # type: ignore[return-value]


_attend.defvjp(_forward, _backward)
