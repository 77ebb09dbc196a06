"""`JaxArrays`: what a replay does with arrays of JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.operations.models.tape_file import NumpyArrays


class JaxArrays(NumpyArrays):
    """The functions of `Arrays`, on arrays of JAX, which NumPy reads without a copy on a CPU."""

    def numpy(self, x: Any) -> np.ndarray:
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.asarray(x)
