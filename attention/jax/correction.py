"""Row sums of dS of any attention function, and `corrected`: the function without them.

In exact arithmetic every row of dS = P (dP - delta) sums to zero. A feature of ones behind K, with
zeros behind Q, V and dO, changes neither the scores nor dP, and dQ = scale dS K then has the row
sums as its last feature:

    Q' = [Q | 0]   K' = [K | 1 0 ...]   V' = [V | 0]   dO' = [dO | 0]      dQ'[H] = scale r

The scale is that of the H features that there were. A function without an argument `scale` is taken
to use 1 / sqrt of the number of features: it is given 4 H of them, and 2 Q. That is exact, since
1 / sqrt(4 H) is half the scale.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.attention.jax import options as known
from roundscope.attention.jax.options import Attention
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown

GROUP = 8  # kernels want so many features, or twice as many, and so on


class Probe(NamedTuple):
    """What an attention function returns with a feature of ones.

    Attributes:
        out: The output, (B, T, N, Hv): in exact arithmetic that of the plain call.
        dq: dQ, (B, T, N, H).
        dk: dK, (B, S, G, H).
        dv: dV, (B, S, G, Hv).
        scaled_sums: The row sums of dS, times the scale, (B, T, N), in the type of dQ.
        of_options: The gradients of the function's other arguments.
    """

    out: Array
    dq: Array
    dk: Array
    dv: Array
    scaled_sums: Array
    of_options: Any


def probed(
    run: Callable[..., Array],
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    options: Any,
    *,
    scale: float,
    takes_scale: bool,
) -> Probe:
    """Return the results of one forward and backward with a feature of ones.

    Args:
        run: The function, called as run(q, k, v, options), with `scale=` behind if it takes it.
        q: (..., T, N, H); k: (..., S, G, H); v: (..., S, G, Hv); do: (..., T, N, Hv).
        options: The function's other arguments that are arrays.
        scale: The factor of the scores.
        takes_scale: Whether the function has an argument `scale`.
    """
    features, of_v = q.shape[-1], v.shape[-1]
    more, factor = (GROUP - features % GROUP, 1) if takes_scale else (3 * features, 2)
    more_v = more if of_v == features else 0  # many functions want as many features of V as of K
    said = {"scale": scale} if takes_scale else {}
    wide_q, wide_v, wide_do = (
        _widened(x, n) for x, n in ((q * factor, more), (v, more_v), (do, more_v))
    )
    wide_k = _widened(k, more).at[..., features].set(1)
    out, pull = jax.vjp(
        lambda q, k, v, options: run(q, k, v, options, **said), wide_q, wide_k, wide_v, options
    )
    dq, dk, dv, of_options = pull(wide_do.astype(out.dtype))
    dq = dq * factor
    return Probe(
        out=out[..., :of_v],
        dq=dq[..., :features],
        dk=dk[..., :features],
        dv=dv[..., :of_v],
        scaled_sums=dq[..., features],
        of_options=of_options,
    )


def wide(x: Array) -> Array:
    """Return x in binary32, or in binary64 if it is that."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def _widened(x: Array, more: int) -> Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])


@known_arguments
def corrected(attention: Attention) -> Attention:
    """Return an attention function with the same output, and with dQ and dK corrected.

    A backward has dS = P (dP - delta), whose rows sum to zero in exact arithmetic. With an error e
    of delta they are r = -e rowsum(P), and dQ and dK have parts that the loss did not ask for. With
    rowsum(P) = 1 they are

        dQ = dQ* + scale r (P K)        dK = dK* + scale P^T (r Q)

    where dQ* and dK* are those of rows that sum to zero. All that is needed to subtract them can be
    had from the function itself:

        scale r          the last feature of dQ, with a feature of ones behind K
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
        own = known.given(attention, args, options)
        known.check_understood(attention, own)
        scale, has_scale = known.scale_of(own), known.takes_scale(attention, own)

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
