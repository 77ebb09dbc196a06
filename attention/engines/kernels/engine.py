"""The Pallas engine: tiles in fused kernels, on a GPU through Triton.

Without a GPU the kernels are interpreted, for tests. The functions are those of the other engines
(`attention.engines.protocol`), and so are the bits. Steps that a head has only once (inputs, the
final gradients, and delta where it has no kernel) run under XLA, which takes several plans as data
(`xla.Each`). A kernel has one plan, so heads with equal plans share a kernel call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import sequential_vmap
from numpy.typing import NDArray

from roundscope.attention.engines import xla
from roundscope.attention.engines.kernels.backward import backward as run_backward
from roundscope.attention.engines.kernels.backward import delta_fits
from roundscope.attention.engines.kernels.backward import deltas as run_deltas
from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.fit import check
from roundscope.attention.engines.kernels.forward import forward as run_forward
from roundscope.attention.engines.xla import (
    enter,
    enter_bias,
    enter_sinks,
    leave,
    leave_bias,
    leave_sinks,
    own_setup,
    per_head,
)
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.traced import HeadPlans, plan_in
from roundscope.attention.sites import Site
from roundscope.attention.tiles.backward import (
    deltas,
    round_head_gradients,
    round_key_gradients,
    round_query_gradients,
)
from roundscope.attention.tiles.loops import Setup, SomeHeads, whole_events
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals, Results
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.arrays import is_traced
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.roundings.modes import BF16, FP16, Rounding
from roundscope.events.recorder import Seen

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The heads of a call that have equal plans, ascending, and the setup of their kernels."""

    setup: Setup
    heads: tuple[int, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Several:
    """The plans of all query heads of a call: as data for XLA, and by share, fixed for kernels."""

    each: xla.Each
    shares: tuple[Share, ...] = field(metadata={"static": True})


def by_head(setup: Setup, plans: HeadPlans, batch: int) -> Several:
    """Return the plans of query heads, the same for every batch entry.

    setup: the setup of the call, with the structure of the plans.
    """
    shares = []
    for plan, own in _equal(plans_of_heads(setup.plan, plans)).items():
        some, count = SomeHeads(own=own, heads=setup.heads, step=setup.heads), len(own)
        is_wide = plan[Site.SCALED].format.precision > 24  # than binary32, which scales are in
        scale = setup.whole_scale if is_wide else float(np.float32(setup.whole_scale))
        mine = replace(setup, plan=plan, scale=scale, heads=count, key_heads=count, some=some)
        heads = tuple(b * setup.heads + n for b in range(batch) for n in own)
        shares.append(Share(setup=mine, heads=heads))
    return Several(xla.by_head(setup, plans, batch), tuple(shares))


def prepare(setups: Setup | tuple[Setup, ...]) -> tuple[Setup, Several | None]:
    """Return what `prepare` of `attention.engines.xla` returns, with the plans also for kernels."""
    setup, each = xla.prepare(setups)
    if each is None or isinstance(setups, Setup):
        return setup, None
    heads = tuple(range(setup.heads))
    some = SomeHeads(own=heads, heads=setup.heads, step=0)
    nameless = [replace(s, plan=replace(s.plan, name=""), some=some) for s in setups]
    shares = [
        Share(setup=mine, heads=tuple(b * setup.heads + n for b in entries for n in heads))
        for mine, entries in _equal(nameless).items()
    ]
    return setup, Several(each, tuple(shares))


def plans_of_heads(like: Plan, plans: HeadPlans) -> list[Plan]:
    """Return the plan of each query head. Raise ValueError if the plans are traced.

    like: the structure of the plans, with what the arguments of the call changed.
    """
    if is_traced(plans.table):
        raise ValueError(
            "plan: the plans of heads are traced, as an argument of jit, vmap or scan is, and a"
            " fused kernel is compiled for its plans; use them from outside the function, or"
            " engine='xla', which takes them as data"
        )
    return [plan_in(like, table) for table in np.asarray(plans.table)]


def check_heads(
    setup: Setup, plans: HeadPlans, sizes: tuple[int, ...], mask: Any, traced: bool
) -> None:
    """Raise ValueError for plans of heads that the kernels cannot run; see `fit.check`."""
    for plan, heads in _equal(plans_of_heads(setup.plan, plans)).items():
        named = replace(plan, name=f"of head {heads[0]}")
        check(replace(setup, plan=named), sizes, mask, traced)


def round_inputs(
    setup: Setup, site: Site, x: Array, several: Several | None = None
) -> tuple[Array, Any]:
    """Return what `round_inputs` of `attention.engines.xla` returns."""
    return xla.round_inputs(setup, site, x, None if several is None else several.each)


def by_share(
    kernels: Callable[[Setup], Callable[..., Any]],
    setup: Setup,
    several: Several | None,
    queries: Sequence[Array],
    keys: Sequence[Array],
) -> Any:
    """Return the results of kernels for all query heads, in the order of the heads.

    `kernels` gives, for a setup, a function of the arrays, of query heads and then of key heads,
    whose results have query heads along the first axis. Without several plans the setup's is that
    of all.
    """
    if several is None or len(several.shares) == 1:
        return kernels(setup if several is None else several.shares[0].setup)(*queries, *keys)
    group, found = queries[0].shape[0] // keys[0].shape[0], []
    for share in several.shares:
        heads = np.array(share.heads)
        own, of_keys = (x[heads] for x in queries), key_heads(heads, group)
        found.append(kernels(share.setup)(*own, *(x[of_keys] for x in keys)))
    order = np.argsort(np.concatenate([share.heads for share in several.shares]))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[order], *found)


def key_heads(heads: Numbers, group: int) -> Numbers:
    """Return the key heads of query heads: one for each group if all groups are complete, else one
    for each query head.
    """
    first = heads[::group]
    whole = (first[:, None] + np.arange(group)).ravel()
    is_whole = np.array_equal(heads, whole) and not (first % group).any()
    return (first if is_whole else heads) // group


def _equal(given: Iterable[Any]) -> dict[Any, tuple[int, ...]]:
    """Return the positions of each different thing, in the order in which they first come."""
    found: dict[Any, tuple[int, ...]] = {}
    for n, x in enumerate(given):
        found[x] = (*found.get(x, ()), n)
    return found


AXES_OF_A_HEAD = 3  # the most that an event that is not repeated has: heads, rows, features

__all__ = ["backward", "by_head", "cast", "enter", "enter_bias", "enter_sinks", "forward", "leave"]
__all__ += ["leave_bias", "leave_sinks"]
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
    q, k, v, mask, *_ = inputs
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
    inputs, (out, wide, lse, _) = given
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
        read = (unread if x is None else x.astype(jnp.float64) for x in results[:3])
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
    (q, k, v, mask, *_), (out, _, lse, _) = given
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
    on_gpu, given = jax.default_backend() == "gpu", (q, k, v, do, lse, delta, *mask)
    return run_backward(setup, *given, on_gpu=on_gpu, may_be_final=may_be_final)


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
