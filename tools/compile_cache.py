"""How XLA programs are compiled: with a cache on disk, and with deterministic algorithms.

The command line keeps what it compiled, so that a second run compiles nothing.
"""

import warnings
from pathlib import Path

from roundscope.emu.backends.kept import writable_folder


def keep_compilations() -> None:
    """Keep JAX's compilations in the folder `jax` of Roundscope's caches, if that is writable."""
    import jax

    folder = writable_folder("jax")
    # JAX compiles such a program anew, in every run; `doctor` says what to remove
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def is_damaged(file: Path) -> bool:
    """Return whether JAX cannot read a file of its cache, beside which it keeps dates of use."""
    from jax._src.compilation_cache import decompress_executable

    if not file.name.endswith("-cache"):
        return False
    try:
        return not decompress_executable(file.read_bytes())
    except Exception:  # of the library that JAX compresses with, which it chooses
        return True


def deterministic() -> dict[str, bool] | None:
    """Return options for `jax.jit` with which one kind of GPU gives the same bits in every process.

    With them XLA chooses no algorithm by timing it, and no algorithm adds in an arbitrary order.
    None where JAX's backend is not a GPU, since no option is needed there.
    """
    import jax

    return {"xla_gpu_deterministic_ops": True} if jax.default_backend() == "gpu" else None
