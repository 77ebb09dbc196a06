"""What is measured of a run every 25 steps, on one sequence: the drift that the alarm watches.

For every head, with r the row sums of dS times the scale, PK = P K, and y what the gradient is a
gradient by:

    R = sum_t r[t] y[t]^T PK[t],  G = sum_t y[t]^T dQ[t]

y is X, what W_Q reads, or V, the values of all heads, which are a linear image of X: the second is
what `roundscope.torch.watch` has in a model that it does not know. The columns are, summed over
layers and heads, |R|, |G| and |S| with y = V, then the same with y = X. S is the sum of R over
looks, in which a look counts 0.9 times the next one: where R has no direction, it stays small.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.models.alarm import KEPT
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.linear import FULL
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.gpt.step import numbers_only
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import Batches

ABOUT = "drift of values and of inputs, decay 0.9, one sequence"
COLUMNS = ("made", "whole", "summed", "made_x", "whole_x", "summed_x")


def looking() -> Callable[[Group, int, Batches], Array]:
    """Return a function of a launch that returns the columns of all arms, (arms, 6)."""
    summed: Any = None

    def look(group: Group, done: int, batches: Batches) -> Array:
        nonlocal summed
        tokens = group.own(batches)[..., :1, :]
        seen = _all_arms(numbers_only(group.settings.config))(
            group.state.params, tokens, group.plans(done)[0], np.int32(done)
        )
        rest, columns = seen
        kept = jax.tree.map(jnp.zeros_like, rest) if summed is None or done == 0 else summed
        summed, sizes = _added(kept, rest)
        found: Array = _columns(columns, sizes)
        return found

    return look


@lru_cache(64)
def _all_arms(config: Config) -> Any:
    def one(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        own = row_sums(config, params, tokens, plans, step)
        layers, batch, t = own.v.shape[:3]
        values = own.v.reshape(layers, batch, t, -1)
        rest, columns = [], []
        for y in (values, own.x):
            r = jnp.einsum("lbtn,lbtd,lbtnh->lndh", own.r, y, own.pk, precision=FULL)
            g = jnp.einsum("lbtd,lbtnh->lndh", y, own.dq, precision=FULL)
            rest.append(r)
            columns.append((_norms(r), _norms(g)))
        return tuple(rest), columns

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        own_batch = 0 if tokens.ndim == 3 else None
        return jax.vmap(one, in_axes=(0, own_batch, 0, None))(params, tokens, plans, step)

    return jax.jit(all_arms)


@jax.jit
def _added(kept: Any, rest: Any) -> Any:
    """Return the sums over looks, and their sizes; a look that is not finite is left out."""
    total = jax.tree.map(lambda s, r: KEPT * s + jnp.where(jnp.isfinite(r), r, 0.0), kept, rest)
    return total, [jax.vmap(_norms)(x) for x in total]


@jax.jit
def _columns(columns: Any, sizes: Any) -> Array:
    (made, whole), (made_x, whole_x) = columns
    return jnp.stack([made, whole, sizes[0], made_x, whole_x, sizes[1]], axis=-1)


def _norms(x: Array) -> Array:
    """Return the sum over layers and heads of the Frobenius norms of (L, N, D, H)."""
    return jnp.sqrt((x * x).sum((-2, -1))).sum()
