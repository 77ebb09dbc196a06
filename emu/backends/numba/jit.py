"""Numba's decorators with types.

Numba has no type information, so its own decorators return `Any`. The decorators here return a
function of the same type as their argument, so that a type checker still checks kernels. All of
them are plain `njit` without fastmath, which could change the bits.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numba
from numba.core import config
from numba.extending import intrinsic as numba_intrinsic

from roundscope.emu.backends.threads import kept_folder

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


def njit(function: F) -> F:
    """Compile a function that other compiled functions call, without keeping it on disk."""
    jitted: F = numba.njit(function)
    return jitted


def inlined(function: F) -> F:
    """Compile a function as `njit` does, and copy its body into every compiled caller."""
    jitted: F = numba.njit(inline="always")(function)
    return jitted


def intrinsic(function: Callable[Concatenate[Any, P], Any]) -> Callable[P, Any]:
    """Declare a function that compiled code replaces with the instructions that it describes.

    Args:
        function: takes Numba's typing context and then the types of the arguments; it returns the
            signature and the function that emits the instructions.

    Returns:
        The function that compiled code calls. It takes the arguments without the typing context.
    """
    declared: Callable[P, Any] = numba_intrinsic(function)
    return declared


def compiled(function: F) -> F:
    """Compile a function of a module and keep it on disk, so that a new process loads it quickly.

    The function must be defined in a module and must call only such functions. Numba cannot cache a
    closure over compiled functions or a compiled function that is passed as an argument. Numba
    reads the name of the cache folder only while the function is decorated, so the caches of other
    packages do not move.
    """
    before, config.CACHE_DIR = config.CACHE_DIR, str(kept_folder("numba", numba.__version__))
    try:
        jitted: F = numba.njit(nogil=True, cache=True)(function)
    finally:
        config.CACHE_DIR = before
    return jitted


def closure(tag: str) -> Callable[[F], F]:
    """Return a decorator that compiles the functions of a factory by `njit`, with unique names.

    Numba names machine code after the function, its types and a count that starts again in every
    process. If two closures have the same name and types, and one is loaded from disk and the other
    compiled in this process, the linker silently uses the first for both.

    Args:
        tag: a text that only this factory uses; it is appended to the functions' names.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}.{tag}"
        return njit(function)

    return decorate
