"""Linear layers and the embedding, with backwards of their own.

They define what rounds where, and leave the order of nothing to chance. matmul="bf16" is the
paper's "BF16 forward, FP32 backward" (arXiv 2510.04212): the forward rounds both operands to BF16
and adds the exact products in FP32; the backward multiplies the same rounded operands with the FP32
gradient, in FP32. (PyTorch's autocast also rounds the result and the gradients to BF16.)
matmul="fp16" is the same with FP16. Sums are in the device's order.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

BITS = {"bf16": (8, 7), "fp16": (5, 10)}  # of exponent and significand
FULL = lax.Precision.HIGHEST  # or a GPU drops bits of FP32 operands (TF32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x: Array, w: Array, kind: str) -> Array:
    """Return x (..., K) times w (K, N), float32; kind is Config.matmul."""
    return _forward(x, w, kind)[0]


def _forward(x: Array, w: Array, kind: str) -> tuple[Array, tuple[Array, Array]]:
    if kind in BITS:
        x, w = rounded(x, kind), rounded(w, kind)
        # numbers of both formats are TF32 numbers: nothing is lost on a GPU, whose default for FP32
        # operands is TF32
        return jnp.matmul(x, w, precision=lax.Precision.DEFAULT), (x, w)
    return jnp.matmul(x, w, precision=FULL), (x, w)


def _backward(kind: str, operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = operands
    rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    return jnp.matmul(g, w.T, precision=FULL), jnp.matmul(rows[0].T, rows[1], precision=FULL)


linear.defvjp(_forward, _backward)


def rounded(x: Array, kind: str = "bf16") -> Array:
    """Return x rounded to BF16 or FP16, as float32; numbers beyond FP16's range become infinite.

    XLA deletes an `astype` there and back, but not this.
    """
    exponent, mantissa = BITS[kind]
    return lax.reduce_precision(x, exponent_bits=exponent, mantissa_bits=mantissa)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def embed(table: Array, tokens: Array, vocab: int) -> Array:
    """Return rows (..., D) of the table (V, D).

    Its gradient is a product with one-hot rows: a scatter adds in any order on a GPU.
    """
    return table[tokens]


def _embed_forward(table: Array, tokens: Array, vocab: int) -> tuple[Array, Array]:
    return table[tokens], tokens


def _embed_backward(vocab: int, tokens: Array, g: Array) -> tuple[Array, Any]:
    hot = jax.nn.one_hot(tokens.reshape(-1), vocab, dtype=g.dtype)
    return jnp.matmul(hot.T, g.reshape(-1, g.shape[-1]), precision=FULL), None


embed.defvjp(_embed_forward, _embed_backward)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Return the mean of log sum exp - the target's logit.

    logits (..., V) are float32, targets (...) integers. There is no gather, so no scatter backward.
    """
    hit = jnp.arange(logits.shape[-1], dtype=targets.dtype) == targets[..., None]
    chosen = jnp.where(hit, logits, jnp.zeros((), logits.dtype)).sum(-1)
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()
