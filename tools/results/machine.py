"""The device and the packages that computed a result, recorded beside its numbers."""

import functools
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("roundscope", "numpy", "numba", "ml_dtypes")


@functools.cache
def device(engine: str) -> str:
    """Return "cpu" and the processor's name for numpy, the kind of JAX's first device for xla."""
    if engine == "xla":
        import jax

        return str(jax.devices()[0].device_kind)
    return f"cpu {_processor()}"


@functools.cache
def versions(engine: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide bits on this engine."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, "jax", "jaxlib") if engine == "xla" else PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source tree"
    return found


@functools.cache
def has_gpu() -> bool:
    """Return whether the driver of a GPU is present.

    This is a guess on which only speed depends. JAX is not asked, since it would reserve the GPU's
    memory.
    """
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd"))


def _processor() -> str:
    """Return the processor's model where the system names it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return model or platform.processor() or platform.machine()
