"""JAX's compilations kept on disk for the command line: a second run of the same shapes compiles nothing."""

from pathlib import Path


def keep_compilations() -> None:
    """Point JAX's persistent cache at ~/.cache/roundscope/jax; the bits of results do not depend on it."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "roundscope" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
