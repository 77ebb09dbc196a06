"""Results of cells that stay on JAX's device: `chosen` entries as one batch, and `sums`, of which
numbers alone come back.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.backends.xla.ops import xla_ops
from roundscope.experiments.sweep.measuring.sums import Arrays, Sums, sums_of


def chosen(found: Sequence[tuple[Arrays, int]], size: int) -> Arrays:
    """The entries (arrays, place in them) as one batch of `size`, the last repeated.

    Shapes are few: those of the batches.
    """
    padded = [*found, *[found[-1]] * (size - len(found))]
    batches = {id(arrays): arrays for arrays, _ in padded}
    batch: Arrays | None = None
    with jax.enable_x64(True):
        for key, arrays in batches.items():
            places = np.array([place if id(x) == key else -1 for x, place in padded])
            batch = (
                _taken(arrays, np.maximum(places, 0))
                if batch is None
                else _filled(batch, arrays, places)
            )
    done: Arrays = jax.block_until_ready(batch)  # so that the time is that of this part
    return done


def sums(mine: Arrays, golden: Arrays, unfused: Arrays, emin: np.ndarray) -> dict[str, Sums]:
    """`sums_of`, of a whole batch in one executable."""
    with jax.enable_x64(True):
        found: dict[str, Sums] = jax.device_get(_sums(np.int64(0), mine, golden, unfused, emin))
    return found


@jax.jit
def _sums(
    zero: Array, mine: Arrays, golden: Arrays, unfused: Arrays, emin: Array
) -> dict[str, Sums]:
    """zero: an argument, so that no compiler sees through it."""
    return sums_of(xla_ops(zero), mine, golden, unfused, emin)


@jax.jit
def taken(x: Array, places: Array) -> Array:
    """x[places], which exist."""
    return jnp.take(x, places, axis=0, mode="clip")


@jax.jit
def _taken(arrays: Arrays, places: Array) -> Arrays:
    return {name: taken(x, places) for name, x in arrays.items()}


@jax.jit
def _filled(batch: Arrays, arrays: Arrays, places: Array) -> Arrays:
    """The batch with arrays[place] where the place is not -1."""

    def filled(old: Array, x: Array) -> Array:
        mine = (places >= 0).reshape(-1, *[1] * (x.ndim - 1))
        return jnp.where(mine, taken(x, places), old)

    return {name: filled(batch[name], x) for name, x in arrays.items()}
