"""The Pallas engine: tiles in fused kernels, on a GPU through Triton.

Without a GPU the kernels are interpreted, for tests. The functions are those of the other engines
(`attention.engines.protocol`), and so are the bits. Steps that a head has only once (inputs, the
final gradients, and delta where it has no kernel) run under XLA.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import sequential_vmap

from roundscope.attention.engines import xla
from roundscope.attention.engines.kernels.backward import backward as run_backward
from roundscope.attention.engines.kernels.backward import delta_fits
from roundscope.attention.engines.kernels.backward import deltas as run_deltas
from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.forward import forward as run_forward
from roundscope.attention.engines.kernels.several import (
    Several,
    by_head,
    by_share,
    prepare,
    round_inputs,
)
from roundscope.attention.engines.xla import (
    enter,
    enter_sinks,
    leave,
    leave_sinks,
    own_setup,
    per_head,
)
from roundscope.attention.events.recorder import Seen
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.sites import Site
from roundscope.attention.tiles.backward import (
    deltas,
    round_head_gradients,
    round_key_gradients,
    round_query_gradients,
)
from roundscope.attention.tiles.loops import Setup, whole_events
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals, Results
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.roundings.modes import BF16, FP16, Rounding

AXES_OF_A_HEAD = 3  # the most that an event that is not repeated has: heads, rows, features

__all__ = ["backward", "by_head", "cast", "enter", "enter_sinks", "forward", "leave", "leave_sinks"]
__all__ += ["loaded", "prepare", "round_inputs", "sink_gradients", "stored"]


def forward(
    setup: Setup, inputs: Inputs, several: Several | None = None
) -> tuple[Results, dict[str, Seen]]:
    """Return what `forward` of `attention.engines.xla` returns.

    What was recorded of tiles comes added up to whole heads, but for single events.
    """
    with jax.enable_x64(True):
        results, seen = _forward(setup, inputs, several)
        return Results(*results), _apart(seen)


@partial(jax.jit, static_argnums=0)
def _forward(setup: Setup, inputs: Inputs, several: Several | None) -> Any:
    """Return the results of all heads, and what was recorded of them, by name."""
    q, k, v, mask, _ = inputs
    queries = (q,) if mask is None else (q, mask)
    return by_share(partial(_kernels, _of_queries), setup, several, queries, (k, v))


def _of_queries(setup: Setup, q: Array, *x: Array, on_gpu: bool) -> Any:
    """Return what the kernel of the forward returns; x: the mask if there is one, k and v."""
    *mask, k, v = x
    return run_forward(setup, q, k, v, on_gpu, *mask)


def cast(rounding: Rounding, x: AnyArray) -> AnyArray:
    """Return an input after a rounding if the device has an instruction for it, else unchanged.

    A GPU has those from float32 to the nearest BF16 and FP16 number. The barrier keeps XLA from
    removing a conversion to a narrower type and back.
    """
    types = {BF16: jnp.bfloat16, FP16: jnp.float16}
    if jax.default_backend() != "gpu" or x.dtype != jnp.float32 or rounding not in types:
        return x
    rounded: Array = lax.optimization_barrier(jnp.asarray(x).astype(types[rounding]))
    return rounded


def stored(setup: Setup, several: Several | None, given: Residuals) -> Residuals:
    """Return q, k, v, out, wide and lse as they are kept between forward and backward.

    They have the narrowest types that hold them: a model keeps those of all its layers, and writing
    and reading binary64 would take longer than a kernel. None stands for an output that delta does
    not read. Arrays stay binary64 with several plans, after an injection or a block format, and
    where delta reads the output before its last rounding.
    """
    if several is not None:
        return given
    inputs, (out, wide, lse) = given
    group = inputs.q.shape[0] // inputs.k.shape[0]
    call = Call(setup=setup, on_gpu=jax.default_backend() == "gpu", group=group)
    reads = setup.plan.delta_from
    with jax.enable_x64(True):
        own = {n: call.stored(Site[n.upper()], getattr(inputs, n)) for n in ("q", "k", "v")}
        results = Results(
            call.stored(Site.OUT, out) if reads is DeltaFrom.OUT else None,
            wide if reads is DeltaFrom.WIDE_O else None,
            call.stored(Site.LSE, lse),
        )
        return Residuals(inputs._replace(**own), results)


def loaded(kept: Residuals) -> Residuals:
    """Return what `stored` was given; an output that delta does not read is 0."""
    (q, k, v, *others), results = kept
    with jax.enable_x64(True):
        wide = (x.astype(jnp.float64) for x in (q, k, v))
        unread = jnp.zeros((*q.shape[:2], v.shape[2]))
        read = (unread if x is None else x.astype(jnp.float64) for x in results)
        return Residuals(Inputs(*wide, *others), Results(*read))


def _kernels(run: Callable[..., Any], setup: Setup) -> Callable[..., Any]:
    """Return the kernels of a setup, as a function of arrays."""
    return _one_after_another(partial(run, setup, on_gpu=jax.default_backend() == "gpu"))


def backward(
    setup: Setup, given: Residuals, do: Array, several: Several | None = None
) -> tuple[Gradients, dict[str, Seen]]:
    """Return what `backward` of `attention.engines.xla` returns.

    What was recorded of tiles comes added up to whole heads, but for single events.
    """
    with jax.enable_x64(True):
        results, whole, keys = _backward(setup, given, do, several)
        return Gradients(*results), _apart(whole) | {"keys": keys}


def sink_gradients(
    setup: Setup, sinks: Array, lse: Array, delta: Array, several: Several | None = None
) -> tuple[Array, Seen]:
    """Return what `sink_gradients` of `attention.engines.xla` returns."""
    each = None if several is None else several.each
    return xla.sink_gradients(setup, sinks, lse, delta, each)


@partial(jax.jit, static_argnums=0)
def _backward(setup: Setup, given: Residuals, do: Array, several: Several | None) -> Any:
    """Return the gradients, and what was recorded of query heads and of key heads, by name."""
    (q, k, v, mask, _), (out, _, lse) = given
    heads, keys = q.shape[0], k.shape[0]
    group, each = heads // keys, None if several is None else several.each
    masked = None if mask is None else 0  # the axis of heads

    def own_deltas(h: Array, own: Array | None, given: Residuals, do: Array) -> Any:
        ops = xla_ops(opaque_zero(given.inputs.q))
        return deltas(ops, own_setup(setup, own), h, given, do)

    def finished(h: Array, own: Array | None, mask: Array | None, *sums: Array) -> Any:
        (dq, dk, dv), mine = sums, own_setup(setup, own)
        at = whole_events(xla_ops(opaque_zero(dq)), mine, h, mask)
        dq = round_query_gradients(at, mine, dq)
        return (dq, *round_head_gradients(at, mine, dk, dv)), at.seen()

    def added(g: Array, own: Array | None, dk: Array, dv: Array) -> Any:
        ops = xla_ops(opaque_zero(dk))
        return round_key_gradients(ops, own_setup(setup, own), g, dk, dv)

    number, own, axis = per_head(each, heads)
    is_plain = jax.default_backend() == "gpu" and several is None and mask is None
    if is_plain and delta_fits(setup, v.shape[2]):
        delta, seen_delta = _kernels(run_deltas, setup)(do, out), {}
    else:
        of_keys = {n: jnp.repeat(getattr(given.inputs, n), group, axis=0) for n in ("k", "v")}
        mine = given._replace(inputs=given.inputs._replace(**of_keys))
        delta, seen_delta = jax.vmap(own_deltas, (0, axis, 0, 0))(number, own, mine, do)

    # a part of `_one_after_another`, so it reads no array but its arguments
    def completed(mask: Array | None, dq: Array, dk: Array, dv: Array) -> Any:
        number, own, axis = per_head(each, heads)
        of_heads = (0, axis, masked, 0, 0, 0)
        (dq, dk, dv), seen = jax.vmap(finished, of_heads)(number, own, mask, dq, dk, dv)
        of_keys, own_key, axis_of_keys = per_head(each, keys)
        (dk, dv), seen_keys = jax.vmap(added, (0, axis_of_keys, 0, 0))(
            of_keys, own_key, *(x.reshape(keys, group, *x.shape[1:]) for x in (dk, dv))
        )
        return (dq, dk, dv), seen, seen_keys

    def of_one_plan(*x: Array) -> Any:
        own = None if mask is None else x[4]
        made, seen, is_final = _of_rows(setup, x, True)
        made, seen_dq, seen_keys = (made, {}, {}) if is_final else completed(own, *made)
        return made, seen | seen_dq, seen_keys

    arrays = (q, do, lse, delta, *(() if mask is None else (mask,))), (k, v)
    if several is None:
        gradients, seen, seen_keys = _one_after_another(of_one_plan)(*arrays[0], *arrays[1])
        return (*gradients, delta), seen_delta | seen, seen_keys
    sums, seen = by_share(partial(_kernels, _sums_of_rows), setup, several, *arrays)
    gradients, seen_dq, seen_keys = completed(mask, *sums)
    return (*gradients, delta), seen_delta | seen | seen_dq, seen_keys


def _of_rows(setup: Setup, x: tuple[Array, ...], may_be_final: bool) -> Any:
    """Return what the kernels of the backward return; arrays of query heads come first in x."""
    q, do, lse, delta, *mask, k, v = x
    on_gpu = jax.default_backend() == "gpu"
    return run_backward(setup, q, k, v, do, lse, delta, on_gpu, may_be_final, *mask)


def _sums_of_rows(setup: Setup, *x: Array, on_gpu: bool) -> Any:
    """Return the sums dQ, dK and dV of query heads, and what was recorded."""
    return _of_rows(setup, x, False)[:2]


def _apart(seen: Seen) -> dict[str, Seen]:
    """Return what was recorded in two parts: of "tiles" and of "whole" heads.

    Only single events are by tile. Of everything else the kernels return the sum over tiles.
    """
    tiles = {
        name: x
        for name, x in seen.items()
        if name.endswith(".events") and x[0].ndim > AXES_OF_A_HEAD
    }
    return {"tiles": tiles, "whole": {name: x for name, x in seen.items() if name not in tiles}}


def _one_after_another(kernels: Callable[..., Any]) -> Callable[..., Any]:
    """Return kernels that `jax.vmap` calls once for each entry that it maps.

    If the arrays had one more axis, the kernels could count beyond 32 bits without a check.
    """

    def in_64_bits(*x: Array) -> Any:
        with jax.enable_x64(True):  # a caller's vmap traces this again with 64-bit types disabled
            return kernels(*x)

    mapped: Callable[..., Any] = sequential_vmap(in_64_bits)
    return mapped
