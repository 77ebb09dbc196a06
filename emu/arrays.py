"""The types of arrays in public signatures, of NumPy and of JAX alike.

`Array` is an array of either library; `ArrayLike` is all that functions make an array of, numbers
and nested lists of numbers too. `Result` is what a function returns: a NumPy or a JAX array, as its
arguments and its engine say; a union would make every caller ask which. Inside an algorithm an
array belongs to whichever library runs it; there it is `roundscope.emu.backends.ops.Array`, which
has no type of its own.
"""

from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import jax
    import numpy as np
    import numpy.typing as npt

# by name, so that reading a signature does not import JAX
Array: TypeAlias = Union["np.ndarray[Any, Any]", "jax.Array"]
ArrayLike: TypeAlias = Union["npt.ArrayLike", "jax.Array"]
Result: TypeAlias = Any
