"""The XLA engine: the same head function, traced once, mapped over heads, on CPU or GPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention import head as head_of
from attention.head import Setup
from attention.sites import Site
from emu.rounding import BINARY32
from emu.widths import narrow, widen
from emu.xla import round_wide
from emu.xla_ops import opaque_zero, xla_ops


def _ops(setup: Setup, x: Array) -> Any:
    return xla_ops(opaque_zero(x), wide=setup.plan.has_wide_operands or bool(setup.inject))


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of (setup, arrays), compiled once per setup and shapes, with 64-bit types enabled inside."""
    compiled = jax.jit(function, static_argnums=0)

    def call(setup: Setup, *arrays: Any) -> Any:
        with jax.enable_x64(True):
            return compiled(setup, *arrays)

    return call


def _round_inputs(site: Site, setup: Setup, x: Array) -> Any:
    one = lambda h, x: head_of.round_inputs(_ops(setup, x), setup, h, site, x)  # noqa: E731
    return jax.vmap(one)(jnp.arange(x.shape[0]), x)


_ROUND_INPUTS = {site: _wide(partial(_round_inputs, site)) for site in (Site.Q, Site.K, Site.V, Site.DO)}


def round_inputs(setup: Setup, site: Site, x: Array) -> Any:
    """x: (heads, rows, features)."""
    return _ROUND_INPUTS[site](setup, x)


@_wide
def forward(setup: Setup, q: Array, k: Array, v: Array, mask: Array | None) -> Any:
    """q: (heads, T, H); k, v: (key heads, S, H), rounded; mask: (heads, T, S) or None."""
    ops, group = _ops(setup, q), q.shape[0] // k.shape[0]
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))
    one = partial(head_of.forward, ops, setup)
    return jax.vmap(one, in_axes=(0, 0, 0, 0, None if mask is None else 0))(jnp.arange(q.shape[0]), q, k, v, mask)


@_wide
def backward(setup: Setup, q: Array, k: Array, v: Array, mask: Array | None, out: Array, wide: Array, lse: Array, do: Array) -> Any:
    """Gradients of heads, and what was seen of tiles, wholes and key heads."""
    ops, keys = _ops(setup, q), k.shape[0]
    group = q.shape[0] // keys
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))
    one = partial(head_of.backward, ops, setup)
    axes = (0, 0, 0, 0, None if mask is None else 0, 0, 0, 0, 0)
    (dq, dk, dv, delta), seen = jax.vmap(one, in_axes=axes)(jnp.arange(q.shape[0]), q, k, v, mask, out, wide, lse, do)
    dk, dv = (x.reshape(keys, group, *x.shape[1:]) for x in (dk, dv))
    rounded = partial(head_of.round_key_gradients, ops, setup)
    (dk, dv), seen_keys = jax.vmap(rounded)(jnp.arange(keys), dk, dv)
    return (dq, dk, dv, delta), seen | {"keys": seen_keys}


def enter(x: Array) -> Array:
    """Any float array as the carrier, exactly. 64-bit types enabled inside."""
    with jax.enable_x64(True):
        x = jnp.asarray(x)
        return x if x.dtype == jnp.float64 else _enter(x.astype(jnp.float32))


def leave(x: Array, dtype: Any) -> Array:
    """The carrier as float64, or as float32 by one rounding."""
    with jax.enable_x64(True):
        return x if dtype == jnp.float64 else _leave(x)


_enter = jax.jit(widen)
_leave = jax.jit(lambda x: narrow(round_wide(x, BINARY32)))
