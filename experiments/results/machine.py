"""Where a cell was computed, and with which packages: recorded beside its numbers."""

import functools
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("roundscope", "numpy", "numba", "ml_dtypes")


@functools.cache
def device(engine: str) -> str:
    """'cpu' and the processor's name for numpy; the kind of JAX's first device for xla."""
    if engine == "xla":
        import jax

        return str(jax.devices()[0].device_kind)
    return f"cpu {_processor()}"


@functools.cache
def versions(engine: str) -> dict[str, str]:
    """Python and the packages that decide bits on this engine."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, "jax", "jaxlib") if engine == "xla" else PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source tree"
    return found


@functools.cache
def has_gpu() -> bool:
    """Whether a GPU's driver is there.

    A guess that moves speed alone: JAX is not asked, since it would take the GPU's memory.
    """
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd"))


def _processor() -> str:
    """Its model where the system tells, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return model or platform.processor() or platform.machine()
