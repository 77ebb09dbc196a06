"""`Array`: the type of arrays in public signatures, a NumPy array or a JAX one.

Inside an algorithm an array belongs to whichever library runs it; there it is
`roundscope.emu.backends.ops.Array`, which has no type of its own.
"""

from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import jax
    import numpy as np

# by name, so that reading a signature does not import JAX
Array: TypeAlias = Union["np.ndarray[Any, Any]", "jax.Array"]
