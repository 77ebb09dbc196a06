"""Arrays on their way from a program to the host."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def send(receive: Callable[[dict[str, np.ndarray]], None], arrays: Mapping[str, Array]) -> None:
    """Let a program call `receive` on the host, with these arrays of the program by name.

    The call may come later than the program returns; `jax.effects_barrier()` waits for it. Types
    are kept: JAX runs callbacks in a thread of its own, where `jax.enable_x64` of the caller does
    not hold and numbers of 64 bits would lose half of them, so they travel as pairs of 32 bits.
    """
    wide = {name: np.dtype(x.dtype) for name, x in arrays.items() if x.dtype.itemsize == 8}

    def received(found: dict[str, Any]) -> None:
        own = {name: np.array(x) for name, x in found.items()}
        receive(own | {name: own[name].view(dtype)[..., 0] for name, dtype in wide.items()})

    halves = {name: lax.bitcast_convert_type(arrays[name], jnp.uint32) for name in wide}
    jax.debug.callback(received, dict(arrays) | halves)
