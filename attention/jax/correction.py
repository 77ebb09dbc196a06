"""`corrected`: an attention function whose dS has rows that sum to zero, whatever kernel it is."""

from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.attention.jax.options import (
    Attention,
    check_understood,
    given,
    scale_of,
    takes_scale,
)
from roundscope.attention.jax.probes import probed, wide
from roundscope.emu.shown import shown


def corrected(attention: Attention) -> Attention:
    """Return an attention function with the same output, and with dQ and dK corrected.

    A backward has dS = P (dP - delta), whose rows sum to zero in exact arithmetic. With an error e
    of delta they are r = -e rowsum(P), and dQ and dK have parts that the loss did not ask for. With
    rowsum(P) = 1 they are

        dQ = dQ* + scale r (P K)        dK = dK* + scale P^T (r Q)

    where dQ* and dK* are those of rows that sum to zero. All that is needed to subtract them can be
    had from the function itself:

        scale r          the last feature of dQ, with a feature of ones behind K (`jax.probes`)
        P K              the output with K in the place of V
        P^T (scale r Q)  the gradient of that V, where the gradient of the output is scale r Q

    The output keeps its bits. dV does not depend on delta, and is what the function returns.

    What it costs: one more forward and the backward with 8 more features, and one forward and one
    backward beside them. In units of T S H multiply-adds, forward and backward take 16 instead of
    7 where the backward computes everything, 2.3 times as many (2.2 times the time measured, with
    `jax.nn.dot_product_attention` in XLA on a CPU, 8 heads of 512 x 64).

    Where it is not exact: only the error that makes rows not sum to zero is taken away, which of an
    error of delta is all of it. Of a wrong P or dP it is the part along P; the rest stays. If
    rowsum(P) is not 1, rows of the corrected dS sum to r (1 - rowsum(P)). P K, scale r and the
    products with them are rounded as the function rounds, in BF16 to a relative 2^-8 of the
    correction. Gradients of other arguments, such as a bias, are not corrected.

    Args:
        attention: A function of q (B, T, N, H), k (B, S, G, H) and v (B, S, G, Hv), such as
            `jax.nn.dot_product_attention`, that can also be called with v of H features. Without an
            argument `scale`, its scale has to be 1 / sqrt(H).

    Returns:
        A function with the signature of `attention`. It can be tapped. `watch` then sees rows that
        sum to zero by construction, so that its numbers say nothing of how good the correction is.

    Raises:
        TypeError: `attention` is not a function.
        ValueError: In a call, an argument that is not understood: a softcap, sinks, dropout.

    Example:
        >>> import jax
        >>> from roundscope.jax import corrected
        >>> attention = corrected(jax.nn.dot_product_attention)
        >>> q = jax.numpy.ones((1, 4, 2, 8))
        >>> jax.grad(lambda q: attention(q, q, q, is_causal=True).sum())(q).shape
        (1, 4, 2, 8)
    """
    if not callable(attention):
        raise TypeError(f"attention={shown(attention)}: give a function of q, k and v")

    @wraps(attention)
    def call(*args: Any, **options: Any) -> Any:
        own = given(attention, args, options)
        check_understood(attention, own)
        scale, has_scale = scale_of(attention, own), takes_scale(attention, own)

        def run(q: Any, k: Any, v: Any, arrays: Any, **more: Any) -> Any:
            return attention(q, k, v, **arrays, **(own.others | more))

        @jax.custom_vjp
        def plain(q: Any, k: Any, v: Any, arrays: Any) -> Any:
            return run(q, k, v, arrays)

        def forward(q: Any, k: Any, v: Any, arrays: Any) -> Any:
            return run(q, k, v, arrays), (q, k, v, arrays)

        def backward(kept: Any, do: Any) -> Any:
            q, k, v, arrays = kept
            probe = probed(run, q, k, v, do, arrays, scale=scale, takes_scale=has_scale)
            sums = probe.scaled_sums[..., None]
            pk, pull = jax.vjp(lambda x: run(q, k, x, arrays), k)
            (of_keys,) = pull((wide(sums) * wide(q)).astype(pk.dtype))
            dq = _less(probe.dq, wide(sums) * wide(pk))
            return dq, _less(probe.dk, of_keys), probe.dv, probe.of_options

        plain.defvjp(forward, backward)
        q, k, v = (jnp.asarray(x) for x in (own.q, own.k, own.v))
        return plain(q, k, v, own.arrays)

    return call


def _less(x: Array, y: Array) -> Array:
    """Return x - y, subtracted in binary32 or wider, in the type of x."""
    return (wide(x) - wide(y)).astype(x.dtype)
