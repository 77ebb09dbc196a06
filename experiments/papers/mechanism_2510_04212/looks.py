"""A look at the mechanism of arXiv 2510.04212: how alike its updates are, and their errors' sign.

For every head, over the tokens t of some sequences, with r the row sums of dS times the scale
(`experiments.train.gpt.row_sums`), X what W_Q reads and PK = P K:

    a[t] = X[t]^T (PK)[t]           an atom, of rank one
    R = sum_t r[t] a[t]             what the errors add to the gradient of W_Q (equation 2)
    e[t] = -r[t] / scale            delta_lp - delta_hp, where only delta is wrong

No atom is formed: cos(a[t], a[u]) = cos(X[t], X[u]) cos(PK[t], PK[u]).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear import FULL, rounded
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.gpt.step import numbers_only
from roundscope.experiments.train.groups import Batches, Group

ABOUT = "atoms, first singular values, permuted tokens, ties, four sequences"
SEQUENCES, SHUFFLES = 4, 4
WINDOW = 1.955e-3  # gaps below which P in BF16 is 1: -ln(1 - 2^-9)
GAP = 1e-3  # that of the released code, on scores in BF16
NAMES = (  # means over layers and heads; the signed error of delta of each head follows
    "x",  # mean cosine of X over pairs of tokens
    "pk",  # ... of PK
    "atom",  # ... of the atoms
    "unpaired",  # ... with the tokens of X permuted against those of PK
    "first",  # share of R's largest singular value in |R|^2
    "shuffled",  # ... with the errors permuted over tokens
    "gradient",  # ... of the gradient of W_Q
    "turn",  # cosine of R with that of the look before
    "turn_pk",  # ... of the mean direction of PK
    "turn_x",  # ... of the mean direction of X
    "random",  # |R| over sqrt(sum r^2 |a|^2): 1 if the errors' signs were random
    "made",  # |R|, summed
    "whole",  # |dW_Q|, summed
    "tied",  # share of rows with several maxima, as the released code counts them
    "ones",  # share of rows with several P that BF16 rounds to 1, scores in FP32
)


def looking() -> Callable[[Group, int, Batches], Array]:
    """Return a function of a launch: (group, steps done, tokens) -> (arms, NAMES + L N)."""
    before: Any = None

    def look(group: Group, done: int, batches: Batches) -> Array:
        nonlocal before
        tokens = group.own(batches)[..., :SEQUENCES, :]
        now, columns, errors = _all_arms(numbers_only(group.settings.config))(
            group.state.params, tokens, group.plans(done)[0], np.int32(done)
        )
        found: Array = _columns(
            now, now if before is None or done == 0 else before, columns, errors
        )
        before = now
        return found

    return look


@lru_cache(64)
def _all_arms(config: Config) -> Any:
    def one(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        return of_arm(config, params, tokens, plans, step)

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        own_batch = 0 if tokens.ndim == 3 else None
        return jax.vmap(one, in_axes=(0, own_batch, 0, None))(params, tokens, plans, step)

    return jax.jit(all_arms)


def of_arm(config: Config, params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
    """Return of an arm what the next look compares with, the columns but turns, and e by head."""
    own = row_sums(config, params, tokens, plans, step)
    q, k, _ = model.attention_inputs(params, tokens, plans, config)
    layers, heads = own.r.shape[0], own.r.shape[-1]
    x = jnp.broadcast_to(
        own.x.reshape(layers, 1, -1, config.width),
        (layers, heads, own.r[0, ..., 0].size, config.width),
    )
    r, pk, dq = (_by_head(y) for y in (own.r[..., None], own.pk, own.dq))
    found, now = measured(x, pk, r[..., 0], dq, jax.random.key(step))
    tied, ones = several(q, k)
    error = -r[..., 0].mean(-1) / jnp.float32(config.head_width**-0.5)
    return now, found | {"tied": tied, "ones": ones}, error.reshape(-1)


def _by_head(y: Array) -> Array:
    """Return (L, B, T, N, ...) as (L, N, B T, ...)."""
    moved = jnp.moveaxis(y, 3, 1)
    return moved.reshape(*moved.shape[:2], -1, *y.shape[4:])


def measured(x: Array, pk: Array, r: Array, dq: Array, key: Array) -> tuple[dict[str, Array], Any]:
    """Return columns of NAMES of atoms x (L, N, t, D), pk (L, N, t, H) with errors r (L, N, t).

    dq (L, N, t, H) is the gradient of q. Also what the next look compares with: R and the mean
    directions of PK and X.
    """
    ux, upk = _unit(x), _unit(pk)
    orders = jax.vmap(lambda k: jax.random.permutation(k, x.shape[2]))(
        jax.random.split(key, SHUFFLES)
    )
    whole = _summed(jnp.ones_like(r), x, dq)
    made = _summed(r, x, pk)
    size = jnp.sqrt((r * r * (x * x).sum(-1) * (pk * pk).sum(-1)).sum(-1))
    found = {
        "x": _alike(ux, jnp.ones_like(ux[..., :1])),
        "pk": _alike(upk, jnp.ones_like(ux[..., :1])),
        "atom": _alike(ux, upk),
        "unpaired": jax.vmap(lambda order: _alike(ux[:, :, order], upk))(orders).mean(0),
        "first": first_share(made),
        "shuffled": jax.vmap(lambda order: first_share(_summed(r[:, :, order], x, pk)))(
            orders
        ).mean(0),
        "gradient": first_share(whole),
        "random": _norm(made) / size,
        "made": _norm(made),
        "whole": _norm(whole),
    }
    now = made, upk.mean(2), ux.mean(2)
    return {
        name: y.sum() if name in ("made", "whole") else y.mean() for name, y in found.items()
    }, now


def _unit(y: Array) -> Array:
    """Return rows of length 1; a row of zeros stays."""
    size = jnp.sqrt((y * y).sum(-1, keepdims=True))
    return y / jnp.where(size > 0, size, jnp.ones_like(size))


def _alike(a: Array, b: Array) -> Array:
    """Return the mean over pairs t != u of <a[t], a[u]> <b[t], b[u]>, rows of length 1, (L, N)."""
    count = a.shape[2]
    total = jnp.einsum("lntd,lnth->lndh", a, b, precision=FULL)
    return ((total * total).sum((-2, -1)) - count) / (count * (count - 1))


def _summed(r: Array, x: Array, y: Array) -> Array:
    """Return sum_t r[t] x[t]^T y[t], (L, N, D, H)."""
    return jnp.einsum("lnt,lntd,lnth->lndh", r, x, y, precision=FULL)


def _norm(y: Array) -> Array:
    return jnp.sqrt((y * y).sum((-2, -1)))


def first_share(y: Array) -> Array:
    """Return sigma_1^2 / sum sigma^2 of matrices (..., D, H): 1 for rank one."""
    square = jnp.einsum("...dh,...dg->...hg", y, y, precision=FULL)
    values = jnp.linalg.eigvalsh(square)
    found: Array = values[..., -1] / values.sum(-1)
    return found


def several(q: Array, k: Array) -> tuple[Array, Array]:
    """Return the shares of causal rows with several maxima, and with several P = 1 in BF16.

    q, k (L, B, T, N, H). For the first, q, k, their products and the scaled scores are BF16, and
    scores within 1e-3 of the maximum count as equal; rows of one key are counted too.
    """
    scale, seen = jnp.float32(q.shape[-1] ** -0.5), jnp.tri(q.shape[2], dtype=bool)

    def share(s: Array, gap: float) -> Array:
        s = jnp.where(seen, s, -jnp.inf)
        return ((s.max(-1, keepdims=True) - s <= gap).sum(-1) > 1).mean()

    plain = jnp.einsum("lbtnh,lbsnh->lbnts", q, k, precision=FULL) * scale
    low = jnp.einsum("lbtnh,lbsnh->lbnts", rounded(q), rounded(k), precision=FULL)
    return share(rounded(rounded(low) * scale), GAP), share(plain, WINDOW)


@jax.jit
def _columns(now: Any, before: Any, columns: Any, errors: Array) -> Array:
    turns = [
        jax.vmap(lambda a, b: _cosine(a, b).mean())(*pair) for pair in zip(now, before, strict=True)
    ]
    named = columns | dict(zip(("turn", "turn_pk", "turn_x"), turns, strict=True))
    return jnp.concatenate([jnp.stack([named[name] for name in NAMES], axis=-1), errors], axis=-1)


def _cosine(a: Array, b: Array) -> Array:
    """Return the cosine of each head's numbers, (L, N)."""
    a, b = (y.reshape(*y.shape[:2], -1) for y in (a, b))
    size = jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    found: Array = (a * b).sum(-1) / jnp.where(size > 0, size, jnp.ones_like(size))
    return found
