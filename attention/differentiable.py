"""`attend` under JAX transformations: the emulated backward is its derivative (`jax.custom_vjp`).

`pulled` is the same forward and backward as one function, for a plan per head.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.attention.arguments import check_like_output, check_shapes
from roundscope.attention.engines import xla
from roundscope.attention.engines.again import with_own_lse
from roundscope.attention.engines.layout import SIXTEEN_BITS
from roundscope.attention.engines.protocol import Differentiable, Plans
from roundscope.attention.inputs.scales import check_scales_of_backward
from roundscope.attention.plans.traced import HeadPlans
from roundscope.attention.settings import mask_to_heads, result_type, setup_of_heads
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.backends.ops import Array as CarrierArray
from roundscope.emu.shown import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What is fixed while a call is differentiated.

    engine  what runs heads
    setup   the setup of the call, already checked
    types   the data types of q, k and v, and of sinks and of the bias, None in a call without them
    output  the data type of the output
    biased  the shape of the bias, None in a call without one
    """

    engine: Differentiable
    setup: Setup
    types: tuple[Any, ...]
    output: Any
    biased: tuple[int, ...] | None = None


class _Kept(NamedTuple):
    """What the forward keeps for the backward.

    plans  the plans of heads, as the engine's `by_head` returns them, or None
    error  what the backward adds to the output that delta reads, (B, T, N, Hv), or None
    given  the rounded inputs and the results, as the engine's `stored` returns them
    """

    plans: Plans
    error: Array | None
    given: Residuals


def attend_jax(
    engine: Differentiable,
    setup: Setup,
    plans: HeadPlans | None,
    output: Any,
    inputs: Inputs,
    delta_error: AnyArray | None = None,
) -> Array:
    """Return the output (B, T, N, Hv), differentiable; gradients have the types of the inputs.

    engine       what runs heads
    setup        the setup of the call, already checked
    plans        a plan for each head as data, or None for the plan of the setup
    output       the dtype of the output
    inputs       q, k, v (B, T, N, H), (B, S, G, H) and (B, S, G, Hv); the mask as for `attend`, or
                 None; the sinks (N,) or None; the factors of the scores and of the output, (B N,)
                 or None; and the bias, which broadcasts to (B, N, T, S), or None
    delta_error  (B, T, N, Hv) or None: what the backward adds to the output that delta reads
    """
    q, k, v, mask, *others = inputs
    bias = inputs.bias
    dtype = result_type(q, k, v, *(() if bias is None else (bias,)))
    with jax.enable_x64(dtype == jnp.float64 or bool(jax.config.read("jax_enable_x64"))):
        q, k, v = (_entering(jnp.asarray(x), dtype) for x in (q, k, v))
        error = None if delta_error is None else jnp.asarray(delta_error).astype(dtype)
        sinks, *others = (None if x is None else jnp.asarray(x) for x in others)
    each = None if plans is None else engine.by_head(setup, plans, q.shape[0])
    types = tuple(None if x is None else x.dtype for x in (q, k, v, sinks, others[-1]))
    shape = None if bias is None else tuple(bias.shape)
    call = _Call(engine=engine, setup=setup, types=types, output=output, biased=shape)
    masked = mask_to_heads(setup, mask, q.shape[0], q.shape[2])
    try:
        return _attend(call, each, Inputs(q, k, v, masked, sinks, *others), error)
    except TypeError as told:
        if "forward-mode" in str(told):  # JAX's own words name neither attend nor what to use
            raise TypeError(REFUSED) from None
        raise


def _entering(x: Array, dtype: Any) -> Array:
    """Return an input in the type of the result, or unchanged if its float type is narrower."""
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x if x.dtype == dtype or (is_narrow and dtype == jnp.float32) else x.astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, plans: Plans, inputs: Inputs, error: Array | None) -> Array:
    """Return the output; its derivative is `_backward`."""
    return _forward(call, plans, inputs, error)[0]


def _forward(
    call: _Call, plans: Plans, inputs: Inputs, error: Array | None = None
) -> tuple[Array, _Kept]:
    """Return the output, and what the backward needs."""
    engine, setup, batch = call.engine, call.setup, inputs.q.shape[0]
    blocks = setup.block_q, setup.block_k, setup.block_k
    each = zip((Site.Q, Site.K, Site.V), inputs[:3], blocks, strict=True)
    q, k, v = (_rounded(call, site, x, block, plans) for site, x, block in each)
    sinks = None if inputs.sink is None else engine.enter_sinks(inputs.sink, batch)
    own = inputs.of_scores, inputs.of_output
    of_scores, of_output = (None if x is None else engine.enter_sinks(x, 1) for x in own)
    bias = None if inputs.bias is None else engine.enter_bias(setup, inputs.bias, batch)
    rounded = Inputs(q, k, v, inputs.mask, sinks, of_scores, of_output, bias)
    results, _ = engine.forward(setup, rounded, plans)
    output: Any = engine.leave(results.out, batch, setup.queries, call.output)
    if setup.plan.inputs_again:
        q, k, v = (engine.enter(x, block) for x, block in zip(inputs[:3], blocks, strict=True))
        rounded = rounded._replace(q=q, k=k, v=v)
    return output, _Kept(plans, error, engine.stored(setup, plans, Residuals(rounded, results)))


def _rounded(call: _Call, site: Site, x: AnyArray, block: int, plans: Plans) -> CarrierArray:
    """Return the heads of an input after its event.

    The event is left out where it keeps every number of the input's 16-bit type.
    """
    engine, setup = call.engine, call.setup
    r = setup.plan[site]
    is_plain = (
        plans is None
        and setup.plan.block(site) is None
        and all(injection.site is not site for injection in setup.inject)
    )
    x = engine.cast(r, x) if is_plain else x
    heads, own = engine.enter(x, block), SIXTEEN_BITS.get(x.dtype)
    is_kept = is_plain and own is not None and r.keeps_specials and r.format.holds(own)
    return heads if is_kept else engine.round_inputs(setup, site, heads, plans)[0]


def _backward(call: _Call, kept: _Kept, do: Array) -> tuple[None, Inputs, None]:
    """Return the gradient of each argument of `_attend` that is data, in its own type."""
    gradients, dsinks = _gradients(call, kept, do)
    given = *gradients[:3], dsinks, gradients.dbias
    dq, dk, dv, dsink, dbias = (
        x if x is None or x.dtype == dtype else x.astype(dtype)
        for x, dtype in zip(given, call.types, strict=True)
    )
    return None, Inputs(dq, dk, dv, None, dsink, bias=dbias), None


def _gradients(call: _Call, kept: _Kept, do: Array) -> tuple[Gradients, Array | None]:
    """Return dQ, dK, dV, delta and dB, and in calls with sinks their gradient, (N,).

    A gradient has the type of its input if that is a 16-bit type that holds all its numbers;
    otherwise it has the type that do calls for.
    """
    engine, setup, plans, batch = call.engine, call.setup, kept.plans, do.shape[0]
    inputs, results = engine.loaded(kept.given)
    check_scales_of_backward(inputs)
    read = results
    if kept.error is not None:  # the backward reads the output for delta alone
        read = xla.moved(setup, results, kept.error)
    do_heads = _rounded(call, Site.DO, do, setup.block_q, plans)
    if setup.plan.scaled_keys:
        inputs = inputs._replace(k=engine.round_inputs(setup, Site.KC, inputs.k, plans)[0])
    if setup.plan.inputs_again:
        again = zip((Site.QB, Site.KB, Site.VB), inputs[:3], strict=True)
        q, k, v = (engine.round_inputs(setup, site, x, plans)[0] for site, x in again)
        inputs = inputs._replace(q=q, k=k, v=v)
    dtype = result_type(do)
    given = with_own_lse(engine, setup, Residuals(inputs, read), plans)
    found, _ = engine.backward(setup, given, do_heads, plans)
    sizes = setup.queries, setup.keys, setup.keys, setup.queries
    sites = Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT
    own = [dtype] * len(sites)
    if plans is None:
        own = [_held_by(setup, *x, dtype) for x in zip(sites, call.types[:3], strict=True)]
    left = zip(found[:4], sizes, (*own, dtype), strict=True)
    gradients = Gradients(*(engine.leave(x, batch, size, kind) for x, size, kind in left))
    if call.biased is not None:
        dbias: Any = engine.leave_bias(setup, found.dbias, batch, call.biased, dtype)
        gradients = gradients._replace(dbias=dbias)
    if inputs.sink is None:
        return gradients, None
    of_heads, _ = engine.sink_gradients(setup, inputs.sink, results.lse, found.delta, plans)
    dsinks: Any = engine.leave_sinks(of_heads, batch, dtype)
    return gradients, dsinks


def _held_by(setup: Setup, site: Site, dtype: Any, wide: Any) -> Any:
    """Return dtype if it is a 16-bit type that holds an event's results, else the wide type."""
    own = SIXTEEN_BITS.get(jnp.dtype(dtype))
    is_changed = any(injection.site is site for injection in setup.inject)
    if own is None or is_changed or setup.plan.block(site) is not None:
        return wide
    return dtype if own.holds(setup.plan[site].format) else wide


REFUSED = (
    "attend: its derivative is the emulated backward, of which there is no derivative; use"
    " jax.grad, jax.vjp or jax.jacrev once, without jax.hessian, jax.jvp or a second jax.grad."
    " For those of attention without roundings take jax.nn.dot_product_attention in float64"
)


@jax.custom_jvp
def _once(*x: Array) -> tuple[Array, ...]:
    """Return the arrays, which nothing that is differentiated may depend on."""
    return x


@_once.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    """Raise TypeError: a derivative of the emulated backward, or one in forward mode, is asked."""
    raise TypeError(REFUSED)


def _saved(call: _Call, plans: Plans, inputs: Inputs, error: Array | None) -> tuple[Array, _Kept]:
    """Return what `_forward` does, of q, k and v that are differentiated once."""
    q, k, v = _once(*inputs[:3])
    return _forward(call, plans, inputs._replace(q=q, k=k, v=v), error)


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
    call = _Call(engine=xla, setup=setup, types=(dtype, dtype, dtype, None), output=dtype)
    out, kept = _forward(call, xla.by_head(setup, plan, q.shape[0]), Inputs(q, k, v))
    (dq, dk, dv, delta, _), _ = _gradients(call, kept, jnp.asarray(do).astype(dtype))
    lse = xla.leave(kept.given.results.lse, q.shape[0], setup.queries, dtype)
    return Pulled(out, lse, dq, dk, dv, delta)
