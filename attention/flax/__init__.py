"""Attention in flax models: choose the arithmetic of layers, and tap them.

`attention_fn` is emulated attention in the signature that flax calls; `use` gives it to the layers
of a model, and `tap` lets `roundscope.jax.capture` and `roundscope.jax.watch` hear them.
"""

from roundscope.attention.flax.layers import Replacement, attention_fn, tap, use

__all__ = ["Replacement", "attention_fn", "tap", "use"]
