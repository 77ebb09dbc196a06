"""JAX arrays under XLA, on a CPU or a GPU: the rule traced, formats and modes as data if asked."""
