"""How programs are compiled: kept on disk for the command line, so that a second run compiles
nothing; and repeatably.
"""

from pathlib import Path


def keep_compilations() -> None:
    """Point JAX's persistent cache at ~/.cache/roundscope/jax; the bits of results do not depend on
    it.
    """
    import jax

    jax.config.update(
        "jax_compilation_cache_dir", str(Path.home() / ".cache" / "roundscope" / "jax")
    )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def deterministic() -> dict[str, bool] | None:
    """Options for `jax.jit`: the same bits in every process on one kind of GPU.

    No algorithm is chosen by timing it, and none adds in just any order.
    """
    import jax

    return {"xla_gpu_deterministic_ops": True} if jax.default_backend() == "gpu" else None
