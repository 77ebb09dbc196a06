"""`attend` under JAX transformations: the emulated backward as the derivative, by
`jax.custom_vjp`.
"""

import reprlib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.attention.api import mask_to_heads, result_type, setup_of_heads
from roundscope.attention.arguments import check_like_output, check_shapes
from roundscope.attention.engines import xla as run
from roundscope.attention.engines.layout import SIXTEEN_BITS
from roundscope.attention.plans.traced import HeadPlans
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup

Types = tuple[Any, ...]  # of q, k, v


def attend_jax(
    engine: Any,
    setup: Setup,
    plans: HeadPlans | None,
    output: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    delta_error: Any = None,
    sinks: Any = None,
) -> Array:
    """The output (B, T, N, H); gradients have the types of the inputs.

    engine       the module that runs heads: `xla_engine` or `pallas_engine`
    output       the dtype of the output
    delta_error  (B, T, N, H) or None: what the backward adds to the output where delta reads it
    sinks        (N,) or None
    """
    dtype = result_type(q, k, v)
    with jax.enable_x64(dtype == jnp.float64 or bool(jax.config.read("jax_enable_x64"))):
        q, k, v = (_entering(jnp.asarray(x), dtype) for x in (q, k, v))
        error = None if delta_error is None else jnp.asarray(delta_error).astype(dtype)
        sinks = None if sinks is None else jnp.asarray(sinks)
    each = None if plans is None else run.by_head(plans, q.shape[0])
    types = tuple(x.dtype for x in (q, k, v, *(() if sinks is None else (sinks,))))
    return _attend(
        engine,
        setup,
        types,
        output,
        each,
        q,
        k,
        v,
        mask_to_heads(setup, mask, q.shape[0], q.shape[2]),
        error,
        sinks,
    )


def _entering(x: Array, dtype: Any) -> Array:
    """An input as it enters: narrow floats as they are."""
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x if x.dtype == dtype or (is_narrow and dtype == jnp.float32) else x.astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _attend(
    engine: Any,
    setup: Setup,
    types: Types,
    output: Any,
    each: run.Each | None,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    error: Array | None,
    sinks: Array | None,
) -> Array:
    return _forward(engine, setup, output, each, q, k, v, mask, error, sinks)[0]


def _forward(
    engine: Any,
    setup: Setup,
    output: Any,
    each: run.Each | None,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    error: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Any]:
    inputs = ((Site.Q, q, setup.block_q), (Site.K, k, setup.block_k), (Site.V, v, setup.block_k))
    rounded = [_rounded(setup, site, x, block, each) for site, x, block in inputs]
    of_sinks = () if sinks is None else (run.enter_sinks(sinks, q.shape[0]),)
    (out, wide, lse), _ = engine.forward(setup, *rounded, mask, each, *of_sinks)
    result = run.leave(out, q.shape[0], setup.queries, output)
    return result, (each, *rounded, mask, out, wide, lse, of_sinks, error)


def _rounded(setup: Setup, site: Site, x: Array, block: int, each: run.Each | None) -> Array:
    """Heads of an input, rounded; numbers of a 16-bit type that the event keeps are not asked."""
    heads, r, own = run.enter(x, block), setup.plan[site], SIXTEEN_BITS.get(x.dtype)
    is_plain = (
        each is None
        and setup.plan.block(site) is None
        and all(injection.site is not site for injection in setup.inject)
    )
    if is_plain and own is not None and r.keeps_specials and r.format.holds(own):
        return heads
    return run.round_inputs(setup, site, heads, each)[0]  # type: ignore[no-any-return]


def _backward(
    engine: Any, setup: Setup, types: Types, output: Any, residuals: Any, do: Array
) -> tuple[None, Array, Array, Array, None, None, Array | None]:
    dq, dk, dv, _, *dsinks = _gradients(engine, setup, residuals, do)
    found = [
        x if x.dtype == dtype else x.astype(dtype)
        for x, dtype in zip((dq, dk, dv, *dsinks), types, strict=True)
    ]
    return None, found[0], found[1], found[2], None, None, found[3] if dsinks else None


def _gradients(engine: Any, setup: Setup, residuals: Any, do: Array) -> tuple[Array, ...]:
    """dQ, dK, dV and delta, and of calls with sinks the gradient of those, (N,)."""
    each, q, k, v, mask, out, wide, lse, sinks, error = residuals
    if error is not None:  # the backward reads the output for delta alone
        out, wide = run.moved(setup, (out, wide), error)
    do_heads, _ = run.round_inputs(setup, Site.DO, run.enter(do, setup.block_q), each)
    if setup.plan.scaled_keys:
        k, _ = run.round_inputs(setup, Site.KC, k, each)
    dtype = jnp.float64 if do.dtype == jnp.float64 else jnp.float32
    found, _ = engine.backward(setup, q, k, v, mask, out, wide, lse, do_heads, each, *sinks)
    sizes = setup.queries, setup.keys, setup.keys, setup.queries
    gradients = tuple(
        run.leave(x, do.shape[0], size, dtype) for x, size in zip(found, sizes, strict=True)
    )
    if not sinks:
        return gradients
    of_heads, _ = run.sink_gradients(setup, *sinks, lse, found[3], each)
    return *gradients, run.leave_sinks(of_heads, do.shape[0], dtype)


_attend.defvjp(lambda engine, setup, types, *x: _forward(engine, setup, *x), _backward)


class Pulled(NamedTuple):
    """Attention with its backward, JAX or NumPy arrays: all (B, T, N, H) but lse = L and delta, (B,
    T, N).
    """

    out: Any
    lse: Any
    dq: Any
    dk: Any
    dv: Any
    delta: Any


def pulled(
    q: Any,
    k: Any,
    v: Any,
    do: Any,
    *,
    plan: HeadPlans,
    block_q: int = 128,
    block_k: int = 128,
    is_causal: bool = False,
) -> Pulled:
    """`attend` by a plan per head, its gradients for `do`, and the L and delta that a derivative
    does not show.

    Arguments as `attend`; may be traced and mapped. float64 in, float64 out (needs 64-bit types
    enabled), else float32.
    """
    if not isinstance(plan, HeadPlans):
        raise TypeError(
            f"plan={reprlib.repr(plan)}: give attention.plans.traced.head_plans([...]), a plan for"
            " each head of q"
        )
    check_shapes(q, k, v)
    check_like_output("do", do, (*q.shape[:3], v.shape[3]))
    setup = setup_of_heads(q, k, v, plan, block_q, block_k, is_causal)
    dtype = result_type(q, k, v)
    each = run.by_head(plan, q.shape[0])
    out, residuals = _forward(run, setup, dtype, each, q, k, v, None)
    dq, dk, dv, delta = _gradients(run, setup, residuals, jnp.asarray(do).astype(dtype))
    return Pulled(
        out, run.leave(residuals[-3], q.shape[0], setup.queries, dtype), dq, dk, dv, delta
    )
