"""The row sums of dS of any attention function, by a feature of ones.

In exact arithmetic every row of dS = P (dP - delta) sums to zero. A feature of ones behind K, with
zeros behind Q, V and dO, changes neither the scores nor dP, and dQ = scale dS K then has the row
sums as its last feature:

    Q' = [Q | 0]   K' = [K | 1 0 ...]   V' = [V | 0]   dO' = [dO | 0]      dQ'[H] = scale r

The scale is that of the H features that there were. A function without an argument `scale` is taken
to use 1 / sqrt of the number of features: it is given 4 H of them, and 2 Q. That is exact, since
1 / sqrt(4 H) is half the scale.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

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
        k: See q.
        v: See q.
        do: See q.
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
    """Return x with so many features of zeros behind its own."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])
