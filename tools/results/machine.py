"""What a record says of how results were made: device, packages, command line, digests."""

import functools
import hashlib
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("roundscope", "numpy", "numba", "ml_dtypes")  # which decide bits; so do those of JAX
JAX = ("jax", "jaxlib")


@functools.cache
def device(engine: str) -> str:
    """Return "cpu" and the processor's name for numpy, the kind of JAX's first device for xla."""
    if engine == "xla":
        import jax

        return str(jax.devices()[0].device_kind)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"cpu {next(models, '') or platform.processor() or platform.machine()}"


def installed(names: Iterable[str], missing: str = "not installed") -> dict[str, str]:
    """Return the versions of Python and of packages; `missing` for one that is not installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = missing
    return found


@functools.cache
def versions(engine: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide bits on this engine."""
    return installed((*PACKAGES, *(JAX if engine == "xla" else ())), "source tree")


def all_versions(engine: str) -> dict[str, str]:
    """Return the versions of Python and of every package that took part, by name."""
    return installed((*PACKAGES, "safetensors", "matplotlib", *(JAX if engine != "numpy" else ())))


@functools.cache
def has_gpu() -> bool:
    """Return whether the driver of a GPU is present.

    This is a guess on which only speed depends. JAX is not asked, since it would reserve the GPU's
    memory.
    """
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd"))


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
