"""Calls of operations as programs of JAX."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops


def compiled(
    work: partial[Any], arrays: tuple[Any, ...], gradients: tuple[Any, ...] | None
) -> tuple[Any, ...]:
    """Return what a function of (ops, arrays, gradients) returns, computed by one program.

    work: the function, whose own arguments are hashable: calls that have equal ones share a program
    """
    with jax.enable_x64(True):
        found: tuple[Any, ...] = _program(work.func, work.args, arrays, gradients)
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _program(
    function: Callable[..., Any],
    own: tuple[Any, ...],
    arrays: tuple[Any, ...],
    gradients: tuple[Any, ...] | None,
) -> Any:
    first = next(x for x in arrays if x is not None and jnp.issubdtype(x.dtype, jnp.floating))
    return function(*own, xla_ops(opaque_zero(first)), arrays, gradients)
