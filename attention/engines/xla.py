"""The XLA engine: the function of one head, traced once and mapped over heads, on CPU or GPU.

The functions are those of `attention.engines.protocol`. Plans that differ only in formats may be
data of the compiled program (`Each`), so that many plans share one compilation.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.engines.layout import (
    SIXTEEN_BITS,
    from_heads,
    scores_from_heads,
    scores_to_heads,
    to_heads,
)
from roundscope.attention.plans.traced import HeadPlans, TracedPlan, common_structure, table_of
from roundscope.attention.sites import Site
from roundscope.attention.softmax.bias import has_wide_scores
from roundscope.attention.tiles import backward as backward_of
from roundscope.attention.tiles import forward as forward_of
from roundscope.attention.tiles import loops
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals, Results
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.backends.xla.rounding import narrow, round_wide, widen
from roundscope.emu.formats.codes import encode
from roundscope.emu.roundings.modes import BINARY32, Rounding
from roundscope.events.recorder import Seen

Result = TypeVar("Result")
_COMPILED: list[Any] = []


def compilations() -> int:
    """Return how many executables this engine has built in this process."""
    return sum(f._cache_size() for f in _COMPILED)


class Each(NamedTuple):
    """The plans of all query heads as data of the compiled program.

    table   the roundings of each head's plan, (heads, rows, FIELDS, 2)
            (`attention.plans.traced.table_of`)
    number  the number of each head in random streams and injections, (heads,)
    """

    table: AnyArray
    number: AnyArray


def prepare(setups: Setup | tuple[Setup, ...]) -> tuple[Setup, Each | None]:
    """Return the arguments of the calls below.

    These are the setup that is compiled and, if batch entries have plans of their own, those plans
    as data, else None. Raise ValueError for plans that need different compilations.
    """
    if isinstance(setups, Setup):
        return setups, None
    plans, heads = [s.plan for s in setups], setups[0].heads
    setup = replace(setups[0], plan=common_structure(plans), scale=setups[0].whole_scale)
    # a batch entry with a plan of its own counts as a separate call
    table = np.repeat(np.stack([table_of(p) for p in plans]), heads, axis=0)
    return setup, Each(table, np.tile(np.arange(heads), len(plans)))


def by_head(setup: Setup, plans: HeadPlans, batch: int) -> Each:
    """Return the plans of query heads as data, the same for every batch entry.

    The other arguments are the setup of the call, which this engine does not need, and how many
    batch entries there are.
    """
    return of_heads(jnp.asarray(plans.table), batch)


def of_heads(table: Array, batch: int) -> Each:
    """Return the plans of the table of a `HeadPlans` as data, the same for every batch entry."""
    return Each(jnp.tile(table, (batch, 1, 1, 1)), np.arange(batch * table.shape[0]))


def own_setup(setup: Setup, own: Array | None) -> Setup:
    """Return the setup of one head: with its plan from the table of an `Each`, or unchanged."""
    if own is None:
        return setup
    plan: Any = TracedPlan(setup.plan, own)
    is_wide = has_wide_scores(plan)
    scale: Any = jnp.where(is_wide, setup.scale, np.float64(np.float32(setup.scale)))
    return replace(setup, plan=plan, scale=scale)


def per_head(each: Each | None, heads: int) -> tuple[Array, Array | None, int | None]:
    """Return the numbers of query or key heads, the plan of each, and the plans' axis for vmap.

    The plan of a key head is the plan of its first query head. The plans and their axis are None if
    plans are not data.
    """
    if each is None:
        return jnp.arange(heads), None, None
    group = each.table.shape[0] // heads
    return jnp.asarray(each.number)[::group] // group, jnp.asarray(each.table)[::group], 0


def _wide(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function of (setup, arrays) that is compiled with 64-bit types enabled.

    It is compiled once for each combination of setup and shapes.
    """
    compiled = jax.jit(partial(_kept_inside, function), static_argnums=0)
    _COMPILED.append(compiled)

    def call(setup: Setup, *arrays: Any) -> Result:
        with jax.enable_x64(True):
            result: Result = compiled(setup, *arrays)
        return result

    return call


def _kept_inside(function: Callable[..., Result], setup: Setup, *arrays: Any) -> Result:
    """Return what a function of (setup, arrays) returns, with its constants in its own program.

    Nobody differentiates the function, but a loop around a call of it may be, such as that over the
    layers of a model. JAX then computes before the loop what does not depend on its turns,
    constants too, and hands them to each turn as arrays of the size of all tiles. A checkpoint
    keeps them inside. On a GPU, whose own order of native sums may depend on the program around
    them, there is none.
    """
    if jax.default_backend() != "cpu":
        return function(setup, *arrays)
    kept = jax.checkpoint(function, static_argnums=0, prevent_cse=False)
    result: Result = kept(setup, *arrays)
    return result


def _round_inputs(
    site: Site, setup: Setup, x: Array, each: Each | None = None
) -> tuple[Array, Seen]:
    """Return the results of `round_inputs`."""

    def one(h: Array, x: Array, own: Array | None) -> tuple[Array, Seen]:
        return loops.round_inputs(xla_ops(opaque_zero(x)), own_setup(setup, own), h, site, x)

    number, own, axis = per_head(each, x.shape[0])
    found: tuple[Array, Seen] = jax.vmap(one, in_axes=(0, 0, axis))(number, x, own)
    return found


_ROUND_INPUTS = {
    site: _wide(partial(_round_inputs, site))
    for site in (Site.Q, Site.K, Site.V, Site.DO, Site.KC, Site.QB, Site.KB, Site.VB)
}


def round_inputs(
    setup: Setup, site: Site, x: Array, each: Each | None = None
) -> tuple[Array, Seen]:
    """Return an input tensor (heads, rows, features) after its event, and what was recorded."""
    return _ROUND_INPUTS[site](setup, x, each)


@_wide
def forward(
    setup: Setup, inputs: Inputs, each: Each | None = None
) -> tuple[Results, dict[str, Seen]]:
    """Return the results of all heads, and what was recorded."""
    q, k, v, *_ = inputs
    ops, group = xla_ops(opaque_zero(q)), q.shape[0] // k.shape[0]
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))

    def one(h: Array, own: Array | None, inputs: Inputs) -> Any:
        of_head = loops.with_scales(ops, own_setup(setup, own), inputs)
        return forward_of.forward(ops, of_head, h, inputs)

    number, own, axis = per_head(each, q.shape[0])
    found: tuple[Results, dict[str, Seen]]
    found = jax.vmap(one, in_axes=(0, axis, 0))(number, own, inputs._replace(k=k, v=v))
    return found


@_wide
def backward(
    setup: Setup, given: Residuals, do: Array, each: Each | None = None
) -> tuple[Gradients, dict[str, Seen]]:
    """Return dQ, dK, dV, delta and dB, and what was recorded of tiles, of heads and of key heads.

    dK and dV are the gradients of key heads. do is (heads, T, Hv), rounded.
    """
    setup = loops.of_backward(setup)
    given = given._replace(inputs=loops.in_whole_tiles(jnp, setup, given.inputs))
    q, k, v, *_ = given.inputs
    ops, keys = xla_ops(opaque_zero(q)), k.shape[0]
    group = q.shape[0] // keys
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))
    given = given._replace(inputs=given.inputs._replace(k=k, v=v))

    def one(h: Array, own: Array | None, given: Residuals, do: Array) -> Any:
        return backward_of.backward(ops, own_setup(setup, own), h, given, do)

    number, own, axis = per_head(each, q.shape[0])
    found, seen = jax.vmap(one, in_axes=(0, axis, 0, 0))(number, own, given, do)
    dk, dv = (x.reshape(keys, group, *x.shape[1:]) for x in (found.dk, found.dv))

    def rounded(
        g: Array, own: Array | None, dk: Array, dv: Array
    ) -> tuple[tuple[Array, Array], Seen]:
        return backward_of.round_key_gradients(ops, own_setup(setup, own), g, dk, dv)

    number, own, axis = per_head(each, keys)
    (dk, dv), seen_keys = jax.vmap(rounded, in_axes=(0, axis, 0, 0))(number, own, dk, dv)
    return found._replace(dk=dk, dv=dv), seen | {"keys": seen_keys}


@_wide
def sink_gradients(
    setup: Setup, sinks: Array, lse: Array, delta: Array, each: Each | None = None
) -> tuple[Array, Seen]:
    """Return the gradients of the sinks of all heads, (heads,), and what was recorded."""
    ops = xla_ops(opaque_zero(lse))

    def one(h: Array, own: Array | None, *arrays: Any) -> Any:
        return backward_of.sink_gradients(ops, own_setup(setup, own), h, *arrays)

    number, own, axis = per_head(each, lse.shape[0])
    found: tuple[Array, Seen]
    found = jax.vmap(one, in_axes=(0, axis, 0, 0, 0))(number, own, sinks, lse, delta)
    return found


def enter_sinks(sinks: AnyArray, batch: int) -> Array:
    """Return sinks (N,), converted exactly to binary64, for every batch entry: (B N,)."""
    with jax.enable_x64(True):
        own: Array = _enter(jnp.asarray(sinks)[None, None, :, None], 1)
        return jnp.tile(own.reshape(-1), batch)


def leave_sinks(x: Array, batch: int, dtype: Any) -> Array:
    """Return gradients of sinks (B N,) added up over the batch, (N,).

    They are in float64, or rounded once to float32, as dtype says.
    """
    with jax.enable_x64(True):
        total = backward_of.by_halves(jnp, x.reshape(batch, -1))
        left: Array = _leave(total[:, None], 1, 1, jnp.dtype(dtype))
        return left.reshape(-1)


def enter_bias(setup: Setup, bias: AnyArray, batch: int) -> Array:
    """Return a bias that broadcasts to (B, N, T, S), converted exactly to binary64: (B N, T, S)."""
    with jax.enable_x64(True):
        own = jnp.asarray(bias)
        wide: Array = _enter(own.reshape(1, -1, 1, 1), 1)
        heads: Array = scores_to_heads(jnp, wide.reshape(own.shape), setup, batch)
    return heads


def leave_bias(setup: Setup, x: Array, batch: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return gradients of a bias (B N, T, S), added up to the shape of the bias.

    They are in float64, or rounded once to float32, as dtype says.
    """
    with jax.enable_x64(True):
        total = scores_from_heads(jnp, x, setup, batch, shape)
        left: Array = _leave(total.reshape(1, -1, 1), 1, total.size, jnp.dtype(dtype))
        return left.reshape(shape)


def enter(x: AnyArray, block: int) -> Array:
    """Return an array (B, T, N, H) converted exactly to binary64, as (B N, T in whole tiles, H)."""
    with jax.enable_x64(True):
        heads: Array = _enter(jnp.asarray(x), block)
    return heads


def cast(rounding: Rounding, x: AnyArray) -> AnyArray:
    """Return an input unchanged: `round_inputs` rounds it here."""
    return x


def stored(setup: Setup, each: Each | None, given: Residuals) -> Residuals:
    """Return arrays as they are kept between forward and backward: unchanged."""
    return given


def loaded(kept: Residuals) -> Residuals:
    """Return what `stored` was given from its result."""
    return kept


def moved(setup: Setup, results: Results, error: Array) -> Results:
    """Return results with an error (B, T, N, Hv) added to the output, in binary64."""
    with jax.enable_x64(True):
        own = enter(error, setup.block_q)
        return results._replace(out=results.out + own, wide=results.wide + own)


def leave(x: Array, batch: int, rows: int, dtype: Any) -> Array:
    """Return arrays of heads as (B, T, N, ...), in the type `dtype`.

    It is float64; or float32, with one rounding; or a 16-bit type that holds every number.
    """
    with jax.enable_x64(True):
        left: Array = _leave(x, batch, rows, jnp.dtype(dtype))
    return left


@partial(jax.jit, static_argnums=1)
def _enter(x: Array, block: int) -> Array:
    """Return the result of `enter`; on a CPU by integer arithmetic, which keeps subnormals."""
    if x.dtype != jnp.float64:
        x = lax.platform_dependent(
            x, cpu=lambda x: widen(x.astype(jnp.float32)), default=_converted
        )
    heads: Array = to_heads(jnp, x, block)
    return heads


@partial(jax.jit, static_argnums=(1, 2, 3))
def _leave(x: Array, batch: int, rows: int, dtype: Any) -> Array:
    """Return the result of `leave`."""
    x = from_heads(x, batch, rows)
    if dtype == jnp.float64:
        return x
    narrow: Array
    if dtype == jnp.float32:
        narrow = lax.platform_dependent(x, cpu=_rounded, default=_converted)
    else:
        narrow = lax.platform_dependent(
            x,
            cpu=lambda x: _coded(x, dtype),
            default=lambda x: lax.optimization_barrier(x.astype(dtype)),
        )
    return narrow


def _coded(x: Array, dtype: Any) -> Array:
    """Return x, whose numbers a 16-bit type holds, as an array of that type.

    A CPU's own conversion may flush subnormal numbers.
    """
    codes = encode(xla_ops(opaque_zero(x)), x, SIXTEEN_BITS[dtype])
    return lax.bitcast_convert_type(codes.astype(jnp.uint16), dtype)


def _rounded(x: Array) -> Array:
    """Return x in float32 by emulated rounding, since a CPU's conversion may flush subnormals."""
    return narrow(round_wide(x, BINARY32))


def _converted(x: Array) -> Array:
    """Return x in float32 if it is float64, else in float64, by conversions of the device.

    A GPU rounds to nearest, ties to even; a CPU may flush subnormal numbers. The barriers are
    needed because XLA removes a conversion to a narrower type and back, even if one of the two is
    in the caller's code.
    """
    if x.dtype == jnp.float64:
        narrow: Array = lax.optimization_barrier(x.astype(jnp.float32))
        return narrow
    kept: Array = lax.optimization_barrier(x)
    return kept.astype(jnp.float32).astype(jnp.float64)
