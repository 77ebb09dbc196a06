"""The types of arrays in public signatures, of NumPy, JAX and PyTorch alike.

`Array` is an array of NumPy or JAX. `ArrayLike` is everything that functions convert to an array,
which includes numbers, nested lists of numbers and tensors. `Result` is what a function returns: a
NumPy or JAX array or a tensor, which depends on its arguments and its engine. It is Any, because
with a union every caller would have to ask which of the two it got. Inside an algorithm an array
belongs to whichever library runs it; its type there is `roundscope.emu.backends.ops.Array`, which
is Any too.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import jax
    import numpy as np
    import numpy.typing as npt
    import torch

# by name, so that reading a signature does not import JAX
Array: TypeAlias = Union["np.ndarray[Any, Any]", "jax.Array"]
ArrayLike: TypeAlias = Union["npt.ArrayLike", "jax.Array", "torch.Tensor"]
Result: TypeAlias = Any


def is_traced(x: Any) -> bool:
    """Return whether x is a traced array of JAX, which has a shape and a type but no values."""
    return "jax" in sys.modules and isinstance(x, sys.modules["jax"].core.Tracer)


def is_of_jax(x: Any) -> bool:
    """Return whether x is a JAX array."""
    return "jax" in sys.modules and isinstance(x, sys.modules["jax"].Array)
