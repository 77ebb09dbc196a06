"""The pieces of a layer: norms, products, the activation function.

Each is as it is, or has its events rounded where a layer has any. events: the `LinearPlans` of one
layer, table (matrices, events, FIELDS); None for `experiments.train.gpt.linear` and nothing else.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from roundscope.experiments.train import mx
from roundscope.experiments.train.gpt.linear import linear
from roundscope.experiments.train.gpt.linear_plans import LinearPlans
from roundscope.experiments.train.gpt.linear_words import MATRICES, Matrix
from roundscope.experiments.train.mx import Site

LAYER_NORM, RMS_NORM = 1e-5, 1e-6  # added to the variance


def product(x: Array, w: Array, kind: str, events: LinearPlans | None, matrix: Matrix) -> Array:
    """Return x (..., in) times w (in, out); kind is Config.matmul, for a layer without events.

    Blocks of X_W and G_W run over all rows of x.
    """
    if events is None:
        return linear(x, w, kind)
    rows = x.reshape(-1, x.shape[-1])
    y = mx.linear(events.how, rows, w, _rows(events, matrix))
    y = y if events.taps is None else watched(y, rows, events.taps[matrix])
    return y.reshape(*x.shape[:-1], y.shape[-1])


def normed(x: Array, scale: Array, events: LinearPlans | None, matrix: Matrix) -> Array:
    """Return the LayerNorm of x before a matrix, with the events GAMMA, LN and DLN."""
    if events is None:
        return layer_norm(x, scale)
    rows, how = _rows(events, matrix), events.how
    y = layer_norm(
        mx.passed(how, None, Site.DLN, x, rows), mx.passed(how, Site.GAMMA, None, scale, rows)
    )
    return mx.passed(how, Site.LN, None, y, rows)


def passed_phi(phi: Callable[[Array], Array], h: Array, events: LinearPlans | None) -> Array:
    """Return phi(h), with the events PHI and DPHI."""
    if events is None:
        return phi(h)
    rows = _rows(events, Matrix.FC1)
    return mx.passed(
        events.how, Site.PHI, None, phi(mx.passed(events.how, None, Site.DPHI, h, rows)), rows
    )


def _rows(events: LinearPlans, matrix: Matrix) -> Array:
    rows: Array = events.table[MATRICES.index(matrix)]
    return rows


@jax.custom_vjp
def watched(y: Array, x: Array, taps: Any) -> Array:
    """Return y; its gradient by `taps` is what the product's backward reads.

    taps = (zeros like x, zeros like y), and the gradient is (x, dy).
    """
    return y


watched.defvjp(lambda y, x, taps: (y, x), lambda x, g: (g, jnp.zeros_like(x), (x, g)))


def layer_norm(x: Array, scale: Array) -> Array:
    """Return (x - mean) / sqrt(var + 1e-5) times the scale, over the last axis."""
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered * centered).mean(-1, keepdims=True)
    return centered * lax.rsqrt(variance + jnp.asarray(LAYER_NORM, x.dtype)) * scale


def rms_norm(x: Array, scale: Array) -> Array:
    """Return x / sqrt(mean x^2 + 1e-6) times the scale, over the last axis."""
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + jnp.asarray(RMS_NORM, x.dtype)) * scale
