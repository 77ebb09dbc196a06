"""`Array`: the type of arrays in public signatures, a NumPy array or a JAX one.

Inside an algorithm an array belongs to whichever library runs it; there it is
`roundscope.emu.backends.ops.Array`, which has no type of its own.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any] | jax.Array"
