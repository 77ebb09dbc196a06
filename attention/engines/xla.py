"""The XLA engine: the same head function, traced once, mapped over heads, on CPU or GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.engines.layout import from_heads, to_heads
from roundscope.attention.plans.traced import HeadPlans, TracedPlan, common_structure, table_of
from roundscope.attention.sites import Site
from roundscope.attention.tiles import backward as backward_of
from roundscope.attention.tiles import forward as forward_of
from roundscope.attention.tiles import loops
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.backends.xla.rounding import round_wide
from roundscope.emu.backends.xla.widths import narrow, widen
from roundscope.emu.rounding.modes import BINARY32

_COMPILED: list[Any] = []


def compilations() -> int:
    """How many executables this engine has built in this process."""
    return sum(f._cache_size() for f in _COMPILED)


class Each(NamedTuple):
    """Plans of all query heads as data, (heads, rows, FIELDS, 2), and the heads' numbers in random
    streams and injections.
    """

    table: Any
    number: Any


def prepare(setups: Setup | tuple[Setup, ...]) -> tuple[Setup, Each | None]:
    """What the calls below take: the setup that is compiled for, and the plans of batch entries as
    data.

    Raises ValueError for plans that need different compilations.
    """
    if isinstance(setups, Setup):
        return setups, None
    plans, heads = [s.plan for s in setups], setups[0].heads
    setup = replace(setups[0], plan=common_structure(plans), scale=setups[0].whole_scale)
    # with a plan of its own, a batch entry is a call of its own
    table = np.repeat(np.stack([table_of(p) for p in plans]), heads, axis=0)
    return setup, Each(table, np.tile(np.arange(heads), len(plans)))


def by_head(plans: HeadPlans, batch: int) -> Each:
    """The plans of query heads, for every batch entry."""
    table = jnp.tile(jnp.asarray(plans.table), (batch, 1, 1, 1))
    return Each(table, np.arange(table.shape[0]))


def _own(setup: Setup, own: Any) -> Setup:
    """The setup of one head, with its part of an `Each`, or as it is."""
    if own is None:
        return setup
    plan: Any = TracedPlan(setup.plan, own)
    is_wide = plan[Site.SCALED].format.precision > 24
    scale: Any = jnp.where(is_wide, setup.scale, np.float64(np.float32(setup.scale)))
    return replace(setup, plan=plan, scale=scale)


def _per_head(each: Each | None, heads: int) -> tuple[Array, Any, int | None]:
    """Numbers of the heads (query or key heads), the plan of each (a key head's is that of its
    first query head), its axis for vmap.
    """
    if each is None:
        return jnp.arange(heads), None, None
    group = each.table.shape[0] // heads
    return jnp.asarray(each.number)[::group] // group, jnp.asarray(each.table)[::group], 0


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of (setup, arrays), compiled once per setup and shapes, with 64-bit types
    enabled inside.
    """
    compiled = jax.jit(function, static_argnums=0)
    _COMPILED.append(compiled)

    def call(setup: Setup, *arrays: Any) -> Any:
        with jax.enable_x64(True):
            return compiled(setup, *arrays)

    return call


def _round_inputs(site: Site, setup: Setup, x: Array, each: Each | None = None) -> Any:
    def one(h: Array, x: Array, own: Any) -> Any:
        return loops.round_inputs(xla_ops(opaque_zero(x)), _own(setup, own), h, site, x)

    number, own, axis = _per_head(each, x.shape[0])
    return jax.vmap(one, in_axes=(0, 0, axis))(number, x, own)


_ROUND_INPUTS = {
    site: _wide(partial(_round_inputs, site)) for site in (Site.Q, Site.K, Site.V, Site.DO, Site.KC)
}


def round_inputs(setup: Setup, site: Site, x: Array, each: Each | None = None) -> Any:
    """x: (heads, rows, features)."""
    return _ROUND_INPUTS[site](setup, x, each)


@_wide
def forward(
    setup: Setup,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    each: Each | None = None,
    sinks: Array | None = None,
) -> Any:
    """q: (heads, T, H); k, v: (key heads, S, H), rounded; mask: (heads, T, S) or None; sinks:
    (heads,) or None.
    """
    ops, group = xla_ops(opaque_zero(q)), q.shape[0] // k.shape[0]
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))

    def one(h: Array, own: Any, *arrays: Any) -> Any:
        return forward_of.forward(ops, _own(setup, own), h, *arrays)

    number, own, axis = _per_head(each, q.shape[0])
    axes = (0, axis, 0, 0, 0, *(None if x is None else 0 for x in (mask, sinks)))
    return jax.vmap(one, in_axes=axes)(number, own, q, k, v, mask, sinks)


@_wide
def backward(
    setup: Setup,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    wide: Array,
    lse: Array,
    do: Array,
    each: Each | None = None,
    sinks: Array | None = None,
) -> Any:
    """Gradients of heads, and what was seen of tiles, wholes and key heads."""
    ops, keys = xla_ops(opaque_zero(q)), k.shape[0]
    group = q.shape[0] // keys
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))

    def one(h: Array, own: Any, *arrays: Any) -> Any:
        return backward_of.backward(ops, _own(setup, own), h, *arrays)

    number, own, axis = _per_head(each, q.shape[0])
    axes = (0, axis, 0, 0, 0, None if mask is None else 0, 0, 0, 0, 0, None if sinks is None else 0)
    (dq, dk, dv, delta), seen = jax.vmap(one, in_axes=axes)(
        number, own, q, k, v, mask, out, wide, lse, do, sinks
    )
    dk, dv = (x.reshape(keys, group, *x.shape[1:]) for x in (dk, dv))

    def rounded(g: Array, own: Any, dk: Array, dv: Array) -> Any:
        return backward_of.round_key_gradients(ops, _own(setup, own), g, dk, dv)

    number, own, axis = _per_head(each, keys)
    (dk, dv), seen_keys = jax.vmap(rounded, in_axes=(0, axis, 0, 0))(number, own, dk, dv)
    return (dq, dk, dv, delta), seen | {"keys": seen_keys}


@_wide
def sink_gradients(
    setup: Setup, sinks: Array, lse: Array, delta: Array, each: Each | None = None
) -> Any:
    """The gradients of sinks (heads,), and what was seen."""
    ops = xla_ops(opaque_zero(lse))

    def one(h: Array, own: Any, *arrays: Any) -> Any:
        return backward_of.sink_gradients(ops, _own(setup, own), h, *arrays)

    number, own, axis = _per_head(each, lse.shape[0])
    return jax.vmap(one, in_axes=(0, axis, 0, 0, 0))(number, own, sinks, lse, delta)


def enter_sinks(sinks: Array, batch: int) -> Array:
    """Sinks (N,) as the carrier, exactly: (B N,)."""
    with jax.enable_x64(True):
        return jnp.tile(_enter(jnp.asarray(sinks)[None, None, :, None], 1).reshape(-1), batch)


def leave_sinks(x: Array, batch: int, dtype: Any) -> Array:
    """Gradients of sinks (B N,) added over the batch: (N,), in float64, or in float32 by one
    rounding.
    """
    with jax.enable_x64(True):
        total = backward_of.by_halves(jnp, x.reshape(batch, -1))
        return _leave(total[:, None], 1, 1, dtype == jnp.float64).reshape(-1)


def enter(x: Array, block: int) -> Array:
    """Any float array (B, T, N, H) as the carrier, exactly, head by head in whole tiles."""
    with jax.enable_x64(True):
        return _enter(jnp.asarray(x), block)


def moved(setup: Setup, heads: tuple[Array, ...], error: Array) -> tuple[Array, ...]:
    """Heads (heads, T, H) plus an error (B, T, N, H), in binary64."""
    with jax.enable_x64(True):
        own = enter(error, setup.block_q)
        return tuple(x + own for x in heads)


def leave(x: Array, batch: int, rows: int, dtype: Any) -> Array:
    """Heads as (B, T, N, ...), in float64, or in float32 by one rounding."""
    with jax.enable_x64(True):
        return _leave(x, batch, rows, dtype == jnp.float64)


@partial(jax.jit, static_argnums=1)
def _enter(x: Array, block: int) -> Array:
    if x.dtype != jnp.float64:
        x = lax.platform_dependent(
            x, cpu=lambda x: widen(x.astype(jnp.float32)), default=_converted
        )
    return to_heads(jnp, x, block)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _leave(x: Array, batch: int, rows: int, wide: bool) -> Array:
    x = from_heads(x, batch, rows)
    return x if wide else lax.platform_dependent(x, cpu=_rounded, default=_converted)


def _rounded(x: Array) -> Array:
    return narrow(round_wide(x, BINARY32))


def _converted(x: Array) -> Array:
    """To binary32, or from what is narrower than binary64, by conversions, of which a GPU rounds to
    nearest even; a CPU may flush subnormal numbers.

    Behind barriers, since XLA takes a conversion to a narrower type and back, the caller's too, for
    nothing, and leaves out both.
    """
    if x.dtype == jnp.float64:
        return lax.optimization_barrier(x.astype(jnp.float32))
    return lax.optimization_barrier(x).astype(jnp.float32).astype(jnp.float64)
