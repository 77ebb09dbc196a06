"""Same-state pairs: the results of two plans at the same weights and batch.

They are compared by equations 1 and 2 of arXiv 2510.04212:

    (1)  dQ_hp - dQ_lp = alpha diag(delta_lp - delta_hp) (P K)
    (2)  dW^Q_hp - dW^Q_lp = alpha sum_T (delta_lp - delta_hp)[T] (PK)[T]^T X[T]

They hold to the last bits of binary64 where the plans differ in delta alone (site OD) and the rest
is exact, sums included; for any other pair the difference of both sides says how much is not due to
delta.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.differentiable import Pulled, pulled
from roundscope.experiments.train.config import JAX, Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear import LinearPlans
from roundscope.experiments.train.gpt.plans import Tables, over_layers
from roundscope.tools.errors import bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two plans at one state; arrays are NumPy, float64, with a leading axis of layers.

    high, low   the results of each plan from the same q, k, v and dO: dq, dk, dv, out (L, B, T, N,
                H), delta, lse (L, B, T, N)
    pk, x       P K in exact arithmetic (L, B, T, N, H); what W^Q reads (L, B, T, D)
    alpha       the scale of the scores
    """

    high: Pulled
    low: Pulled
    pk: np.ndarray
    x: np.ndarray
    alpha: float

    @property
    def delta_error(self) -> np.ndarray:
        """delta_lp - delta_hp, (L, B, T, N)."""
        error: np.ndarray = self.low.delta - self.high.delta
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Atoms:
    """Factors of the rank-1 terms of (2) in one head, for M = B T tokens.

    The difference is the sum over T of weight[T] x[T] pk[T]^T, with weight (M,): alpha (delta_lp -
    delta_hp); pk (M, H); x (M, D).
    """

    weight: np.ndarray
    pk: np.ndarray
    x: np.ndarray


def gradients(params: Any, tokens: Any, plans: Tables | None, config: Config) -> tuple[Any, Any]:
    """Return (loss, gradients) of the whole model, in the type of the parameters.

    float64 ones need 64-bit types enabled. Two plans at the same weights and batch are two calls,
    and one executable if they share a structure.
    """
    loss, gradients = _compiled(config)(params, tokens, plans)
    return loss, gradients


@lru_cache(16)
def _compiled(config: Config) -> Any:
    return jax.jit(
        jax.value_and_grad(lambda params, tokens, plans: model.loss(params, tokens, plans, config))
    )


def pair(params: Any, tokens: Any, high: Tables, low: Tables, config: Config) -> Pair:
    """Return the pair at the state that `high` reaches.

    Its q, k, v, X and dO of every layer go into both backwards. high, low: tables (layers, heads,
    ...); stochastic ones as `step.plans_at` gives them. Raises UsageError for plan = "jax".
    """
    if config.plan == JAX:
        raise bad("plan", JAX, "is not emulated: a pair needs two emulated plans")
    x, q, k, v, do = (np.asarray(leaf, np.float64) for leaf in read(params, tokens, high, config))
    with jax.enable_x64(True):
        both = [
            Pulled(*(np.asarray(leaf) for leaf in _pulled(config.tile, q, k, v, do, plans)))
            for plans in (high, low)
        ]
        pk = np.asarray(_pk(q, k))
    return Pair(high=both[0], low=both[1], pk=pk, x=x, alpha=config.head_width**-0.5)


def read(
    params: Any, tokens: Any, plans: Tables, config: Config, linears: LinearPlans | None = None
) -> tuple[Any, Any, Any, Any, Any]:
    """Return what the attention of every layer reads at one state.

    These are x (L, B, T, D), q, k, v and dO (L, B, T, N, H). linears: what the linear layers round,
    for one arm and step; None for nothing.
    """
    (x, q, k, v), do = _state(config)(params, tokens, plans, linears)
    return x, q, k, v, do


@lru_cache(16)
def _state(config: Config) -> Any:
    """Return a function that returns (what attention read, dO) of every layer."""

    def state(params: Any, tokens: Any, plans: Tables, linears: LinearPlans | None = None) -> Any:
        shape = config.layers, tokens.shape[0], tokens.shape[1] - 1, config.heads, config.head_width
        taps = jnp.zeros(shape, params["embedding"].dtype)
        do, seen = jax.grad(
            lambda taps: model.run(params, tokens, plans, config, taps, linears=linears),
            has_aux=True,
        )(taps)
        return seen, do

    return jax.jit(state)


@partial(jax.jit, static_argnums=0)
def _pulled(tile: int, q: Any, k: Any, v: Any, do: Any, plans: Tables) -> Pulled:
    def one(own: Any, q: Any, k: Any, v: Any, do: Any) -> Pulled:
        return pulled(q, k, v, do, plan=own, block_q=tile, block_k=tile, is_causal=True)

    both: Pulled = over_layers(one, plans, q, k, v, do)
    return both


@jax.jit
def _pk(q: Any, k: Any) -> Any:
    """Return P K, causal: what the equations multiply by the error of delta."""
    s = jnp.einsum("lbtnh,lbsnh->lbnts", q, k) * q.shape[-1] ** -0.5
    p = jax.nn.softmax(jnp.where(jnp.tri(q.shape[2], dtype=bool), s, -jnp.inf), axis=-1)
    pk: Any = jnp.einsum("lbnts,lbsnh->lbtnh", p, k)
    return pk


def equation_1(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides of (1), (L, B, T, N, H)."""
    return pair.high.dq - pair.low.dq, pair.alpha * pair.delta_error[..., None] * pair.pk


def equation_2(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides of (2), (L, N, D, H).

    X^T dQ is the gradient of W^Q of a head (with qk_norm, of the product after the norm).
    """
    left = np.einsum("lbtd,lbtnh->lndh", pair.x, pair.high.dq - pair.low.dq, optimize=True)
    right = np.einsum(
        "lbtd,lbtn,lbtnh->lndh", pair.x, pair.alpha * pair.delta_error, pair.pk, optimize=True
    )
    return left, right


def atoms(pair: Pair, layer: int, head: int) -> Atoms:
    """Return the rank-1 terms of one head in factors; no (D, H) matrix is formed."""
    weight = pair.alpha * pair.delta_error[layer, :, :, head]
    pk, x = pair.pk[layer, :, :, head], pair.x[layer]
    return Atoms(
        weight=weight.reshape(-1), pk=pk.reshape(-1, pk.shape[-1]), x=x.reshape(-1, x.shape[-1])
    )
