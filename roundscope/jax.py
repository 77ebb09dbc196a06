"""Attention in JAX models: `tap`, `capture`, `watch` and `corrected`."""

from roundscope.attention.jax import Watch, capture, corrected, tap, watch

__all__ = ["Watch", "capture", "corrected", "tap", "watch"]
