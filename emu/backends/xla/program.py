"""A call of the API on JAX arrays as one compiled program.

Run operation by operation, a first call would compile some fifty programs, a second call as many
for each new shape, and every call would pass over memory once for each of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax


def run(f: Callable[..., Any], /, *arrays: Any, **fixed: Any) -> Any:
    """Return f(*arrays, **fixed), run as one compiled program with 64-bit types enabled.

    It is compiled once for each shape and dtype of the arrays and each value of `fixed`.

    Args:
        f: a function of a module: its identity is part of the program's key.
        *arrays: JAX arrays, NumPy arrays, numbers, None, or structures of them; tracers too.
        **fixed: hashable values, which the program is compiled for.
    """
    with jax.enable_x64(True):
        return _compiled(f, tuple(fixed.items()), arrays)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(
    f: Callable[..., Any], fixed: tuple[tuple[str, Any], ...], arrays: tuple[Any, ...]
) -> Any:
    return f(*arrays, **dict(fixed))
