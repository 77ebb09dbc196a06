"""`attend` under JAX transformations: the emulated backward is its derivative (`jax.custom_vjp`).

`pulled` is the same forward and backward as one function, for a plan per head.
"""

from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

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
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.backends.ops import Array as CarrierArray
from roundscope.emu.shown import shown

Types: TypeAlias = tuple[Any, ...]  # the data types of q, k, v, and of sinks if the call has them
# what the forward keeps for the backward: the plans of heads (or None); the mask; (sinks,) or ();
# the error of the output; and q, k, v and the results as the engine's `stored` returns them
Residuals: TypeAlias = tuple[Any, ...]
Each: TypeAlias = Any  # the plans of heads, as the engine's `by_head` returns them, or None


def attend_jax(
    engine: ModuleType,
    setup: Setup,
    plans: HeadPlans | None,
    output: Any,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    mask: "AnyArray | None",
    delta_error: "AnyArray | None" = None,
    sinks: "AnyArray | None" = None,
) -> Array:
    """Return the output (B, T, N, Hv), differentiable; gradients have the types of the inputs.

    engine       the module that runs heads: `attention.engines.xla`, `host` or `kernels.engine`
    setup        the setup of the call, already checked
    plans        a plan for each head as data, or None for the plan of the setup
    output       the dtype of the output
    q, k, v      (B, T, N, H), (B, S, G, H) and (B, S, G, Hv)
    mask         as for `attend`, or None
    delta_error  (B, T, N, Hv) or None: what the backward adds to the output that delta reads
    sinks        (N,) or None
    """
    dtype = result_type(q, k, v)
    with jax.enable_x64(dtype == jnp.float64 or bool(jax.config.read("jax_enable_x64"))):
        q, k, v = (_entering(jnp.asarray(x), dtype) for x in (q, k, v))
        error = None if delta_error is None else jnp.asarray(delta_error).astype(dtype)
        sinks = None if sinks is None else jnp.asarray(sinks)
    each = None if plans is None else engine.by_head(setup, plans, q.shape[0])
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
    """Return an input in the type of the result, or unchanged if its float type is narrower."""
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x if x.dtype == dtype or (is_narrow and dtype == jnp.float32) else x.astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _attend(
    engine: ModuleType,
    setup: Setup,
    types: Types,
    output: Any,
    each: Each,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    error: Array | None,
    sinks: Array | None,
) -> Array:
    """Return the output; its derivative is `_backward`."""
    return _forward(engine, setup, output, each, q, k, v, mask, error, sinks)[0]


def _forward(
    engine: ModuleType,
    setup: Setup,
    output: Any,
    each: Each,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    mask: Array | None,
    error: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Residuals]:
    """Return the output, and what the backward needs."""
    inputs = ((Site.Q, q, setup.block_q), (Site.K, k, setup.block_k), (Site.V, v, setup.block_k))
    rounded = [_rounded(engine, setup, site, x, block, each) for site, x, block in inputs]
    of_sinks = () if sinks is None else (run.enter_sinks(sinks, q.shape[0]),)
    results, _ = engine.forward(setup, *rounded, mask, each, *of_sinks)
    result = engine.leave(results[0], q.shape[0], setup.queries, output)
    return result, (each, mask, of_sinks, error, engine.stored(setup, each, (*rounded, *results)))


def _rounded(
    engine: ModuleType, setup: Setup, site: Site, x: AnyArray, block: int, each: Each
) -> Array:
    """Return the heads of an input after its event.

    The event is left out where it keeps every number of the input's 16-bit type.
    """
    r = setup.plan[site]
    is_plain = (
        each is None
        and setup.plan.block(site) is None
        and all(injection.site is not site for injection in setup.inject)
    )
    x = engine.cast(r, x) if is_plain else x
    heads, own = engine.enter(x, block), SIXTEEN_BITS.get(x.dtype)
    is_kept = is_plain and own is not None and r.keeps_specials and r.format.holds(own)
    found: Array = heads if is_kept else engine.round_inputs(setup, site, heads, each)[0]
    return found


def _backward(
    engine: ModuleType, setup: Setup, types: Types, output: Any, residuals: Residuals, do: Array
) -> tuple[None, Array, Array, Array, None, None, Array | None]:
    """Return the gradient of each argument of `_attend` that is data, in its own type."""
    dq, dk, dv, _, *dsinks = _gradients(engine, setup, residuals, do, types)
    found = [
        x if x.dtype == dtype else x.astype(dtype)
        for x, dtype in zip((dq, dk, dv, *dsinks), types, strict=True)
    ]
    return None, found[0], found[1], found[2], None, None, found[3] if dsinks else None


def _gradients(
    engine: ModuleType, setup: Setup, residuals: Residuals, do: Array, types: Types | None = None
) -> tuple[Array, ...]:
    """Return dQ, dK, dV and delta, and in calls with sinks their gradient, (N,).

    types: the types of q, k and v. A gradient has this type if it is a 16-bit type that holds all
    its numbers; otherwise it has the type that do calls for.
    """
    each, mask, sinks, error, stored = residuals
    q, k, v, out, wide, lse = engine.loaded(stored)
    if error is not None:  # the backward reads the output for delta alone
        out, wide = run.moved(setup, (out, wide), error)
    do_heads = _rounded(engine, setup, Site.DO, do, setup.block_q, each)
    if setup.plan.scaled_keys:
        k, _ = engine.round_inputs(setup, Site.KC, k, each)
    dtype = result_type(do)
    found, _ = engine.backward(setup, q, k, v, mask, out, wide, lse, do_heads, each, *sinks)
    sizes = setup.queries, setup.keys, setup.keys, setup.queries
    sites = Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT
    own = [dtype] * len(sites)
    if types is not None and each is None:
        own = [_held_by(setup, *x, dtype) for x in zip(sites, types, strict=False)]
    gradients = tuple(
        engine.leave(x, do.shape[0], size, left)
        for x, size, left in zip(found, sizes, (*own, dtype), strict=True)
    )
    if not sinks:
        return gradients
    of_heads, _ = run.sink_gradients(setup, *sinks, lse, found[3], each)
    return *gradients, run.leave_sinks(of_heads, do.shape[0], dtype)


def _held_by(setup: Setup, site: Site, dtype: Any, wide: Any) -> Any:
    """Return dtype if it is a 16-bit type that holds an event's results, else the wide type."""
    own = SIXTEEN_BITS.get(jnp.dtype(dtype))
    is_changed = any(injection.site is site for injection in setup.inject)
    if own is None or is_changed or setup.plan.block(site) is not None:
        return wide
    return dtype if own.holds(setup.plan[site].format) else wide


@jax.custom_jvp
def _once(*x: Array) -> tuple[Array, ...]:
    """Return the arrays, which nothing that is differentiated may depend on."""
    return x


@_once.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    """Raise TypeError: a derivative of the emulated backward, or one in forward mode, is asked."""
    raise TypeError(
        "attend: its derivative is the emulated backward, of which there is no derivative; use"
        " jax.grad, jax.vjp or jax.jacrev once, without jax.hessian, jax.jvp or a second jax.grad"
    )


def _saved(
    engine: ModuleType, setup: Setup, types: Types, output: Any, each: Each, *x: Any
) -> tuple[Array, Residuals]:
    """Return what `_forward` does, of q, k and v that are differentiated once."""
    return _forward(engine, setup, output, each, *_once(*x[:3]), *x[3:])


_attend.defvjp(_saved, _backward)


class Pulled(NamedTuple):
    """Attention with its backward, as `pulled` returns it, JAX or NumPy arrays.

    out    the output, (B, T, N, Hv)
    lse    L, (B, T, N)
    dq     dQ, (B, T, N, H)
    dk     dK, (B, S, G, H)
    dv     dV, (B, S, G, Hv)
    delta  delta, (B, T, N)
    """

    out: CarrierArray
    lse: CarrierArray
    dq: CarrierArray
    dk: CarrierArray
    dv: CarrierArray
    delta: CarrierArray


def pulled(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    do: AnyArray,
    *,
    plan: HeadPlans,
    block_q: int = 128,
    block_k: int = 128,
    is_causal: bool = False,
) -> Pulled:
    """Return attention by a plan per head, its gradients for `do`, and L and delta.

    A derivative of `attend` has the same gradients, but shows neither L nor delta. The call may be
    traced and mapped.

    Args:
        q: (B, T, N, H), NumPy or JAX; k: (B, S, G, H); v: (B, S, G, Hv). float64 gives float64, and
            needs 64-bit types enabled; all else gives float32.
        k: See q.
        v: See q.
        do: The gradient of the output, (B, T, N, Hv).
        plan: A plan for each of the N heads: `attention.plans.traced.head_plans([...])`.
        block_q: Rows of a query tile.
        block_k: Rows of a key tile.
        is_causal: Whether query t sees only keys s <= t.

    Raises:
        TypeError: `plan` is not a `HeadPlans`, or an argument is of a type that `attend` refuses.
        ValueError: An argument has a shape or value that `attend` refuses.
    """
    if not isinstance(plan, HeadPlans):
        raise TypeError(
            f"plan={shown(plan)}: give attention.plans.traced.head_plans([...]), a plan for"
            " each head of q"
        )
    check_shapes(q, k, v)
    check_like_output("do", do, (*q.shape[:3], v.shape[3]))
    setup = setup_of_heads(q, k, v, plan, block_q, block_k, is_causal)
    dtype = result_type(q, k, v)
    each = run.by_head(setup, plan, q.shape[0])
    out, residuals = _forward(run, setup, dtype, each, q, k, v, None)
    dq, dk, dv, delta = _gradients(run, setup, residuals, jnp.asarray(do).astype(dtype))
    return Pulled(
        out, run.leave(residuals[-1][-1], q.shape[0], setup.queries, dtype), dq, dk, dv, delta
    )
