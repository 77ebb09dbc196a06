"""The NumPy engine inside programs of JAX on a CPU, where it is faster than XLA's engine.

The program calls NumPy for each step, so nothing of the emulation is compiled by XLA; the results
are the same bits. The functions are those of a `Differentiable` (`attention.engines.protocol`).
`table`: the plans of heads as data (`attention.plans.traced.HeadPlans`), or None for the plan of
the setup.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.engines import numpy, xla
from roundscope.attention.engines.custom_call import call
from roundscope.attention.engines.xla import (
    cast,
    enter_bias,
    enter_sinks,
    leave_bias,
    leave_sinks,
    loaded,
    stored,
)
from roundscope.attention.plans.choices import BackwardExponent
from roundscope.attention.plans.traced import HeadPlans, is_stochastic, plan_in
from roundscope.attention.sites import Site
from roundscope.attention.softmax.bias import has_wide_scores
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals, Results
from roundscope.emu.arrays import Array as AnyArray
from roundscope.events.recorder import Seen

Found = TypeVar("Found", bound=Any)
__all__ = ["backward", "by_head", "cast", "enter", "enter_bias", "enter_sinks", "forward", "leave"]
__all__ += ["leave_bias", "leave_sinks", "loaded", "round_inputs", "sink_gradients", "stored"]
# a `Differentiable`


def check() -> None:
    """Raise ValueError where JAX's programs do not run on a CPU."""
    if jax.default_backend() != "cpu":
        raise ValueError(
            f"engine='numpy': inside jit, grad or vmap it needs JAX on a CPU, not on a"
            f" {jax.default_backend()}; use engine='xla', which gives the same bits"
        )


def is_faster(setup: Setup, batch: int, *, has_head_plans: bool = False) -> bool:
    """Return whether this engine is faster than XLA's for a call, with the same bits.

    It is on a CPU, where compiled programs of the NumPy engine compute the tiles of a large call,
    or, if heads have plans, of one that is large for a single head. Where JAX has several devices
    it may be told to spread a call, and XLA does not spread what it does not know.
    """
    is_here = jax.default_backend() == "cpu" and jax.device_count() == 1
    if not is_here or not setup.plan.is_reproducible:
        return False
    if has_head_plans and (is_stochastic(setup.plan) or setup.heads != setup.key_heads):
        return False
    together = batch if has_head_plans else batch * setup.heads
    return numpy.has_programs(setup, together)


def by_head(setup: Setup, plans: HeadPlans, batch: int) -> Array:
    """Return the plans of query heads as data."""
    return jnp.asarray(plans.table)


def _by_plan(
    function: Callable[..., tuple[tuple[np.ndarray, ...], Any]],
    setup: Setup,
    table: np.ndarray | None,
    *arrays: np.ndarray | None,
) -> tuple[np.ndarray, ...]:
    """Return function(setup, *arrays)[0] of all heads, by calls for the heads of each plan."""
    if table is None:
        return function(setup, *arrays)[0]
    kinds = [own.tobytes() for own in table]
    setups = {kind: _with_plan(setup, kind, table.shape[1:]) for kind in dict.fromkeys(kinds)}
    if len(setups) == 1:
        return function(setups[kinds[0]], *arrays)[0]
    found: list[np.ndarray] = []
    number = np.array([list(setups).index(kind) for kind in kinds])
    all_heads = next(len(x) for x in arrays if x is not None)
    for n, own in enumerate(setups.values()):
        heads = np.resize(number == n, all_heads)
        results, _ = function(own, *(None if x is None else x[heads] for x in arrays))
        found = found or [np.empty((all_heads, *x.shape[1:]), x.dtype) for x in results]
        for whole, part in zip(found, results, strict=True):
            whole[heads] = part
    return tuple(found)


@lru_cache(256)
def _with_plan(setup: Setup, table: bytes, shape: tuple[int, ...]) -> Setup:
    """Return the setup with the plan of a table, as `xla.own_setup` does."""
    plan = plan_in(setup.plan, np.frombuffer(table, np.uint32).reshape(shape))
    scale = setup.scale if has_wide_scores(plan) else float(np.float32(setup.scale))
    return replace(setup, plan=plan, scale=scale)


def of_jax(found: Found) -> Found:
    """Return a dataclass of results, with a JAX array in place of each NumPy array."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    with jax.enable_x64(True):
        own = {n: jnp.asarray(x) for n, x in values.items() if isinstance(x, np.ndarray)}
    return replace(found, **own)


def _wide(function: Any, shapes: Any, *arrays: Any) -> tuple[Array, ...]:
    """Return the results of a function, which are binary64."""
    with jax.enable_x64(True):
        return call(function, shapes, np.float64, *arrays)


def round_inputs(
    setup: Setup, site: Site, x: Array, table: Array | None = None
) -> tuple[Array, dict[str, Seen]]:
    """Return an input tensor (heads, rows, features) after its event, and nothing recorded."""
    (found,) = _wide(partial(_by_plan, partial(_rounded, site), setup), [x.shape], table, x)
    return found, {}


def _rounded(site: Site, setup: Setup, x: np.ndarray) -> tuple[tuple[np.ndarray], Seen]:
    found, seen = numpy.round_inputs(setup, site, x)
    return (found,), seen


def forward(
    setup: Setup, inputs: Inputs, table: Array | None = None
) -> tuple[Results, dict[str, Seen]]:
    """Return what `numpy.forward` returns, without what was recorded."""
    rows = inputs.q.shape[:2]
    out = *rows, inputs.v.shape[2]
    run = partial(_by_plan, _forward, setup)
    is_kept = setup.plan.exponent_again is BackwardExponent.STATE
    shapes = [out, out, rows, *([(*rows, 2)] if is_kept else [])]
    return Results(*_wide(run, shapes, table, *inputs)), {}


def _forward(setup: Setup, *inputs: np.ndarray) -> tuple[tuple[np.ndarray, ...], Any]:
    results, seen = numpy.forward(setup, Inputs(*inputs))
    return tuple(x for x in results if x is not None), seen


def backward(
    setup: Setup, given: Residuals, do: Array, table: Array | None = None
) -> tuple[Gradients, dict[str, Seen]]:
    """Return what `numpy.backward` returns, without what was recorded."""
    (q, k, v, *_), results = given
    bias = given.inputs.bias
    shapes = [q.shape, k.shape, v.shape, results.lse.shape, *([] if bias is None else [bias.shape])]
    run = partial(_by_plan, _backward, setup)
    return Gradients(*_wide(run, shapes, table, *given.inputs, *results, do)), {}


def _backward(setup: Setup, *x: np.ndarray) -> tuple[tuple[np.ndarray, ...], Any]:
    *given, do = x
    end = len(Inputs._fields)
    residuals = Residuals(Inputs(*given[:end]), Results(*given[end:]))
    found, seen = numpy.backward(setup, residuals, do)
    return tuple(x for x in found if x is not None), seen


def sink_gradients(
    setup: Setup, sinks: Array, lse: Array, delta: Array, table: Array | None = None
) -> tuple[Array, Seen]:
    """Return what `xla.sink_gradients` returns, which is compiled soon."""
    each = None if table is None else xla.of_heads(table, lse.shape[0] // table.shape[0])
    return xla.sink_gradients(setup, sinks, lse, delta, each)


def enter(x: AnyArray, block: int) -> Array:
    """Return what `numpy.enter` returns."""
    b, t, n, h = x.shape
    x = jnp.asarray(x)
    x = x if x.dtype.itemsize > 1 else x.astype(np.float32)  # of an 8-bit type, exactly
    (found,) = _wide(partial(_enter, block), [(b * n, t + -t % block, h)], x)
    return found


def _enter(block: int, x: np.ndarray) -> tuple[np.ndarray]:
    return (numpy.enter(x, block),)


def leave(x: Array, batch: int, rows: int, dtype: Any) -> Array:
    """Return arrays of heads as (B, T, N, ...), in a type that holds every number, or float32."""
    shape = (batch, rows, x.shape[0] // batch, *x.shape[2:])
    with jax.enable_x64(True):
        (found,) = call(partial(_leave, batch, rows, np.dtype(dtype)), [shape], dtype, x)
    return found


def _leave(batch: int, rows: int, dtype: Any, x: np.ndarray) -> tuple[np.ndarray]:
    wide = dtype if dtype == np.float64 else np.float32
    return (numpy.leave(x, batch, rows, wide).astype(dtype, copy=False),)
