"""The rest of dS: what its rows sum to, where exact arithmetic gives 0.

It enters the gradient of W_Q:

    r[t] = sum_s dS[t,s] = sum_s P[t,s] (dP[t,s] - delta[t])
    R = alpha sum_t r[t] X[t]^T (PK)[t]   (D, H): equation 2 of the paper with r in place of the
        error of delta
    share = sum |R| / sum |dW_Q|   over looks at a run and heads, |.| Frobenius
    steady = |sum R| / sum |R|     sums over looks inside |.|: 1 if R points the same way every
        time, 1 / sqrt(looks) if it has no direction

r comes out of the emulated backward itself (`experiments.train.gpt.row_sums`).
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.linear import FULL
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.gpt.step import numbers_only

SEQUENCES, EVERY = 4, 5  # how many sequences of a batch are read; steps between looks


class Rest:
    """Looks at all arms of a launch, from step `config.warmup` to twice that.

    These steps are early, and the same for every arm.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.totals = config, None

    def due(self, step: int) -> bool:
        """Return whether to look before this step."""
        return self.config.warmup <= step < 2 * self.config.warmup and step % EVERY == 0

    def look(self, params: Any, tokens: np.ndarray, plans: Tables | None, step: int) -> None:
        """Add R and dW_Q at these weights to the totals; tokens are (B, T + 1) or (A, B, T + 1)."""
        now = _looking(numbers_only(self.config))(
            params, tokens[..., :SEQUENCES, :], plans, np.int32(step)
        )
        self.totals = now if self.totals is None else jax.tree.map(jnp.add, self.totals, now)

    def found(self, arms: int) -> np.ndarray:
        """Return |sum R|, sum |R| and sum |dW_Q| of every layer and head, (A, L, N, 3).

        They are NaN where no look was taken.
        """
        if self.totals is None:
            return np.full((arms, self.config.layers, self.config.heads, 3), np.nan)
        rest, size, gradient = (np.asarray(x, float) for x in jax.device_get(self.totals))
        return np.stack([np.sqrt((rest**2).sum((-2, -1))), size, gradient], axis=-1)


@lru_cache(64)
def _looking(config: Config) -> Any:
    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        def one(p: Any, t: Array, h: Tables) -> tuple[Array, Array, Array]:
            return _one(config, p, t, h, step)

        return jax.vmap(one, in_axes=(0, 0 if tokens.ndim == 3 else None, 0))(params, tokens, plans)

    return jax.jit(all_arms)


def _one(
    config: Config, params: Any, tokens: Array, plans: Tables, step: Any
) -> tuple[Array, Array, Array]:
    """Return (R, |R|, |dW_Q|) of every layer and head of one arm."""
    own = row_sums(config, params, tokens, plans, step)
    rest = jnp.einsum("lbtn,lbtd,lbtnh->lndh", own.r, own.x, own.pk, precision=FULL)
    gradient = jnp.einsum("lbtd,lbtnh->lndh", own.x, own.dq, precision=FULL)
    return rest, _norm(rest), _norm(gradient)


def _norm(x: Array) -> Array:
    return jnp.sqrt((x * x).sum((-2, -1)))
