"""Attention in flax models: `attention_fn`, `use` and `tap`."""

from roundscope.attention.flax import Replacement, attention_fn, tap, use

__all__ = ["Replacement", "attention_fn", "tap", "use"]
