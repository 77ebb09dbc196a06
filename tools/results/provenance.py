"""The versions, the command line and the digests of arrays that a record of results contains."""

import hashlib
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np


def versions(engine: str) -> dict[str, str]:
    """Return the versions of Python and of every package that took part, by name."""
    names = ["roundscope", "numpy", "numba", "ml_dtypes", "safetensors", "matplotlib"]
    if engine != "numpy":
        names += ["jax", "jaxlib"]
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def digest(array: Any) -> str:
    """Return an array's SHA-256, all NaN made equal since engines may differ in their payload."""
    a = np.ascontiguousarray(array)
    if a.dtype != bool:
        a = np.where(np.isnan(a), np.array(np.nan, a.dtype), a)
    head = f"{a.dtype.str}{a.shape}".encode()
    return hashlib.sha256(head + a.tobytes()).hexdigest()


def command_line() -> list[str]:
    """Return the words that started this process, with the program's name in place of its path."""
    return ["roundscope", *sys.argv[1:]]
