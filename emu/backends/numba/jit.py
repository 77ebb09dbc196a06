"""Numba's decorators with types.

Numba has no type information, so its own decorators return `Any`. The decorators here return a
function of the same type as their argument, so that a type checker still checks kernels. All of
them are plain `njit` without fastmath, which could change the bits.
"""

import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.extending import intrinsic as numba_intrinsic

from roundscope.emu.backends.kept import keep, read_kept
from roundscope.emu.backends.threads import kept_folder

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


def _jitted(function: F, **options: Any) -> F:
    """Return Numba's `njit` of a function, for users who set NUMBA_DISABLE_JIT=1 too.

    The kernels wrap around in 64 bits and have instructions of LLVM: as Python they would be wrong.
    """
    targets = {"nopython": True, "boundscheck": None} | options  # what `njit` gives it
    return cast(F, CPUDispatcher(py_func=function, targetoptions=targets))


def njit(function: F) -> F:
    """Compile a function that other compiled functions call, without keeping it on disk."""
    return _jitted(function)


def inlined(function: F) -> F:
    """Compile a function as `njit` does, and copy its body into every compiled caller."""
    return _jitted(function, inline="always")


def intrinsic(function: Callable[Concatenate[Any, P], Any]) -> Callable[P, Any]:
    """Declare a function that compiled code replaces with the instructions that it describes.

    It takes Numba's typing context and the types of the arguments, and returns the signature and
    the function that emits the instructions. Compiled code calls it without the typing context.
    """
    declared: Callable[P, Any] = numba_intrinsic(function)
    return declared


def compiled(function: F) -> F:
    """Compile a function of a module and keep it on disk, so that a new process loads it quickly.

    The function must be defined in a module and must call only such functions: a closure over
    compiled functions, or a compiled function that is passed as an argument, cannot be kept.
    """
    jitted = _jitted(function, nogil=True)
    cast(Any, jitted)._cache = _Kept(function)
    return jitted


class _Kept(NullCache):  # type: ignore[misc]
    """What Numba asks for the machine code of one function, and tells it.

    Numba's own cache trusts its files, and needs a folder that can be written.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        name = f"{function.__module__}.{function.__qualname__}"
        self._key = (name, code.co_firstlineno, code.co_code, sys.implementation.cache_tag)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what Numba compiled for these types, or None."""
        target_context.refresh()
        data = read_kept(_folder(), self._file(sig, target_context.codegen()))
        return data and CompileResult._rebuild(target_context, *pickle.loads(data))

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what Numba compiled for these types, unless it holds addresses of this process."""
        if not data.lifted and not data.library.has_dynamic_globals:
            keep(_folder(), self._file(sig, data.codegen), dumps(data._reduce()))

    def _file(self, sig: Any, codegen: Any) -> str:
        """Return the name of the file for these types on this processor."""
        key = repr((*self._key, str(sig), codegen.magic_tuple()))
        return f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.nbc"


def _folder() -> Path | None:
    return kept_folder("numba", numba.__version__)


def closure(tag: str) -> Callable[[F], F]:
    """Return a decorator that compiles the functions of a factory by `njit`, with unique names.

    Numba names machine code after the function, its types and a count that starts again in every
    process. If two closures have the same name and types, and one is loaded from disk and the other
    compiled in this process, the linker silently uses the first for both. So `tag`, a text that
    only this factory uses, is appended to the names.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}.{tag}"
        return njit(function)

    return decorate
