"""Numba's decorators, given types, and the folder where compiled kernels are kept.

Numba has no type information: whatever its own decorators touch becomes `Any`. The decorators here
return a function of the same type as the one they were given, so that kernels stay checked. All of
them are plain `njit`, without fastmath: the bits are the definition.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numba
from numba.core import config
from numba.extending import intrinsic as numba_intrinsic

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


def njit(function: F) -> F:
    """Compile a function that other compiled functions call; it is not kept on disk by itself."""
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
        What compiled code calls, with the arguments themselves and without the typing context.
    """
    declared: Callable[P, Any] = numba_intrinsic(function)
    return declared


def compiled(function: F) -> F:
    """Compile a function of a module and keep it on disk: a fresh process loads it in milliseconds.

    Only a function of a module that calls nothing but such functions can be kept: a closure over
    compiled functions, or a compiled function passed as an argument, cannot be cached. Numba reads
    the folder's name at this moment and never again, so no other package's cache moves.
    """
    before, config.CACHE_DIR = config.CACHE_DIR, _cache_directory()
    try:
        jitted: F = numba.njit(nogil=True, cache=True)(function)
    finally:
        config.CACHE_DIR = before
    return jitted


def closure(tag: str) -> Callable[[F], F]:
    """Return `njit` for the functions that a factory makes, under a name that no other one has.

    Numba names machine code after the function, its types and a count that starts anew in every
    process. Of two closures of one name and types, one loaded from disk and one compiled here, the
    linker takes the first for both, silently.

    Args:
        tag: what tells this factory's functions from another's; it is appended to their names.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}.{tag}"
        return njit(function)

    return decorate


@cache
def _cache_directory() -> str:
    """Return the folder that keeps compiled kernels for exactly these sources.

    Its name holds a digest of every source file of `emu` and Numba's version, since Numba's own
    cache does not notice that a function which a kernel calls has changed.
    """
    sources = sorted(Path(__file__).parents[2].rglob("*.py"))
    digest = hashlib.sha256(b"".join(s.read_bytes() for s in sources) + numba.__version__.encode())
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = base / "roundscope" / f"numba-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="roundscope-"))
    return str(folder)
