"""Attention in JAX models: capture what it is given, watch it, correct it.

`tap` makes an attention function one that `capture` and `watch` can hear; `corrected` repairs its
gradients.
"""

from roundscope.attention.jax.capturing import capture
from roundscope.attention.jax.correction import corrected
from roundscope.attention.jax.tapping import tap
from roundscope.attention.jax.watching import Watch, watch

__all__ = ["Watch", "capture", "corrected", "tap", "watch"]
