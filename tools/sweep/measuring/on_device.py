"""Results of cells that stay on JAX's device.

`chosen` makes one batch of entries; of `sums` only numbers are copied back.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.backends.xla.ops import xla_ops
from roundscope.tools.sweep.measuring.sums import Arrays, Sums, sums_of


def chosen(found: Sequence[tuple[Arrays, int]], size: int) -> Arrays:
    """Return the entries (arrays, place in them) as a batch of `size`, the last entry repeated."""
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
    """Return `sums_of` a whole batch, computed in one executable."""
    with jax.enable_x64(True):
        found: dict[str, Sums] = jax.device_get(_sums(np.int64(0), mine, golden, unfused, emin))
    return found


@jax.jit
def _sums(
    zero: Array, mine: Arrays, golden: Arrays, unfused: Arrays, emin: Array
) -> dict[str, Sums]:
    """Return `sums_of`; zero is an argument, so that no compiler knows its value."""
    return sums_of(xla_ops(zero), mine, golden, unfused, emin)


@jax.jit
def taken(x: Array, places: Array) -> Array:
    """Return x[places]; all places must exist."""
    return jnp.take(x, places, axis=0, mode="clip")


@jax.jit
def _taken(arrays: Arrays, places: Array) -> Arrays:
    return {name: taken(x, places) for name, x in arrays.items()}


@jax.jit
def _filled(batch: Arrays, arrays: Arrays, places: Array) -> Arrays:
    """Return the batch with arrays[place] wherever the place is not -1."""

    def filled(old: Array, x: Array) -> Array:
        mine = (places >= 0).reshape(-1, *[1] * (x.ndim - 1))
        return jnp.where(mine, taken(x, places), old)

    return {name: filled(batch[name], x) for name, x in arrays.items()}
