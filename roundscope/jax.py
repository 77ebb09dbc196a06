"""Attention in JAX models: `tap`, `capture`, `watch` and `corrected`; all operations of two runs:
`compare`.
"""

from roundscope.attention.jax import Watch, capture, corrected, tap, watch
from roundscope.operations.models.jax.comparing import compare
from roundscope.operations.models.jax.recording import Side

__all__ = ["Side", "Watch", "capture", "compare", "corrected", "tap", "watch"]
