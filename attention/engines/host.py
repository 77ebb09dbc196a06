"""The NumPy engine inside programs of JAX on a CPU, where it is faster than XLA's engine.

The program calls NumPy for each step, so nothing of the emulation is compiled by XLA; the results
are the same bits. The functions are those that `attention.differentiable` calls, without plans as
data, which only XLA's engine takes.
"""

from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.engines import numpy
from roundscope.attention.engines.custom_call import call
from roundscope.attention.engines.xla import cast, loaded, stored
from roundscope.attention.events.recorder import Seen
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.arrays import Array as AnyArray

Found = TypeVar("Found", bound=Any)
__all__ = ["backward", "cast", "enter", "forward", "leave", "loaded", "round_inputs", "stored"]


def check() -> None:
    """Raise ValueError where JAX's programs do not run on a CPU."""
    if jax.default_backend() != "cpu":
        raise ValueError(
            f"engine='numpy': inside jit, grad or vmap it needs JAX on a CPU, not on a"
            f" {jax.default_backend()}; use engine='xla', which gives the same bits"
        )


def is_faster(setup: Setup, batch: int, mask: Any, sinks: Any) -> bool:
    """Return whether this engine is faster than XLA's for a call, with the same bits.

    It is on a CPU, where compiled programs of the NumPy engine compute all heads of a large call.
    """
    return (
        jax.default_backend() == "cpu"
        and setup.plan.is_reproducible
        and numpy.runs_in_step(setup, batch * setup.heads, mask, sinks)
    )


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
    setup: Setup, site: Site, x: Array, each: None = None
) -> tuple[Array, dict[str, Seen]]:
    """Return an input tensor (heads, rows, features) after its event, and nothing recorded."""
    (found,) = _wide(partial(_round_inputs, setup, site), [x.shape], x)
    return found, {}


def _round_inputs(setup: Setup, site: Site, x: np.ndarray) -> tuple[np.ndarray]:
    return (numpy.round_inputs(setup, site, x)[0],)


def forward(
    setup: Setup,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    each: None = None,
    sinks: Array | None = None,
) -> tuple[tuple[Array, ...], dict[str, Seen]]:
    """Return what `numpy.forward` returns, without what was recorded."""
    out, lse = (*q.shape[:2], v.shape[2]), q.shape[:2]
    return _wide(partial(_forward, setup), [out, out, lse], q, k, v, mask, sinks), {}


def _forward(setup: Setup, *arrays: Any) -> tuple[np.ndarray, ...]:
    q, k, v, mask, sinks = arrays
    return numpy.forward(setup, q, k, v, mask, None, sinks)[0]


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
    each: None = None,
    sinks: Array | None = None,
) -> tuple[tuple[Array, ...], dict[str, Seen]]:
    """Return what `numpy.backward` returns, without what was recorded."""
    arrays = q, k, v, mask, out, wide, lse, do, sinks
    shapes = [q.shape, k.shape, v.shape, lse.shape]
    return _wide(partial(_backward, setup), shapes, *arrays), {}


def _backward(setup: Setup, *arrays: Any) -> tuple[np.ndarray, ...]:
    q, k, v, mask, out, wide, lse, do, sinks = arrays
    return numpy.backward(setup, q, k, v, mask, out, wide, lse, do, None, sinks)[0]


def enter(x: AnyArray, block: int) -> Array:
    """Return what `numpy.enter` returns."""
    b, t, n, h = x.shape
    (found,) = _wide(partial(_enter, block), [(b * n, t + -t % block, h)], jnp.asarray(x))
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
