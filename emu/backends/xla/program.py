"""A call of the API on JAX arrays as one compiled program.

If the operations ran one by one, a first call would compile some fifty programs, and a call with a
new shape would compile as many again. Every call would also pass over memory once for each program.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax


def run(f: Callable[..., Any], /, *arrays: Any, **fixed: Any) -> Any:
    """Return f(*arrays, **fixed), run as one compiled program with 64-bit types enabled.

    It is compiled once for each shape and dtype of the arrays and each value of `fixed`.

    Args:
        f: a function that is defined in a module, since its identity is part of the program's key.
        *arrays: JAX arrays, NumPy arrays, numbers, None, or structures of them; tracers too.
        **fixed: hashable values that are constants of the program.
    """
    with jax.enable_x64(True):
        return _compiled(f, tuple(fixed.items()), arrays)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(
    f: Callable[..., Any], fixed: tuple[tuple[str, Any], ...], arrays: tuple[Any, ...]
) -> Any:
    return f(*arrays, **dict(fixed))
