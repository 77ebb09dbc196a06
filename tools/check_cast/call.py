"""A user's cast, `module:function`, as a function of NumPy arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from roundscope.attention.testing.foreign.user import LIBRARIES, function_named, library_of
from roundscope.tools.errors import bad


def cast_named(name: str, library: str | None) -> tuple[Callable[[np.ndarray], Any], str]:
    """Return the cast that a user's function is, and the library whose arrays it is given.

    Args:
        name: the function, as module:function; the current folder is searched first.
        library: one of `LIBRARIES`; None for the one that the function's module has imported.

    Raises:
        ValueError: the function does not exist, or the library is not known.
    """
    if library is not None and library not in LIBRARIES:
        raise bad("--library", library, f"must be one of {', '.join(LIBRARIES)}")
    found = function_named(name, "FUNCTION")
    if not callable(found):
        raise bad("FUNCTION", name, "is no function; name one that takes an array")
    chosen = library or library_of(found)
    given = {"numpy": found, "torch": partial(_of_torch, found), "jax": partial(_of_jax, found)}
    return given[chosen], chosen


def _of_torch(function: Callable[[Any], Any], x: np.ndarray) -> Any:
    import torch

    with torch.no_grad():
        return function(torch.from_numpy(x))


def _of_jax(function: Callable[[Any], Any], x: np.ndarray) -> Any:
    import jax.numpy as jnp

    return function(jnp.asarray(x))
