"""The effect of rounding on one gradient.

An arm's gradient is compared with FP32's at the same weights and rows, for all events together and
one by one. With g the FP32 gradient of all weights and g + epsilon the arm's:

    zeta = |epsilon| / |g|
    cosine = <g, g + epsilon> / |g| |g + epsilon|
    along = <epsilon, g> / |g|^2

`along` is the signed part, which shortens or lengthens the step. The numbers themselves are
measured too, in the format of the operand X of UP: clipped, the share that the block's scale cannot
reach; last, the share that became the largest element; of LayerNorm's gamma also how clustered its
blocks are: the mean over blocks of max |gamma| / min |gamma|, and of how many different numbers a
block of 32 still has.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from roundscope.emu.blocks.xla import ends_row, round_row, row_of
from roundscope.emu.roundings.modes import BINARY32
from roundscope.experiments.train.mx import INDEX, How, Site, reseeded
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.arms import Config
from roundscope.experiments.train.student.model import Arms, State, numbers_only

GAMMAS = ("gamma_clipped", "gamma_last", "gamma_ratio", "gamma_distinct")
NAMES = ("zeta", "cosine", "along", "x_clipped", "x_last", "w_clipped", "w_last", *GAMMAS)


@lru_cache(16)
def measure(config: Config, how: How) -> Callable[..., dict[str, Array]]:
    """Return the jitted (state, arms, x, y, of) -> name -> (A,).

    It has "zeta_SITE" for every event that some arm rounds, with that event alone rounded. Shares
    are means over layers. gamma's numbers are NaN for a student without LayerNorm.
    """
    one = partial(_measured, numbers_only(config), how)
    return jax.jit(lambda state, arms, x, y, of: jax.vmap(one)(state, arms, x[of], y[of]))


def _measured(
    config: Config, how: How, state: State, arm: Arms, x: Array, y: Array
) -> dict[str, Array]:
    table = reseeded(arm.table, state.step) if how.drawn else arm.table

    def gradient(tables: Array) -> Array:
        tree = jax.grad(model.loss)(state.params, config, how, x, y, tables)
        flat: Array = ravel_pytree(tree)[0]
        return flat

    exact = jnp.broadcast_to(jnp.asarray(row_of(BINARY32)), table.shape)
    sites = [site for site in Site if site in how.rounded]
    alone = ([other == site for other in Site] for site in sites)
    kept = jnp.asarray([[False] * len(Site), [True] * len(Site), *alone])

    def one(g: Array, at: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
        """Compare a gradient, some events rounded, with g, the first turn's; one program."""
        own = gradient(jnp.where(at[1][:, None], table, exact))
        g = jnp.where(at[0] == 0, own, g)
        return g, compared(own - g, g)

    blank = jnp.zeros_like(ravel_pytree(state.params)[0])
    every = lax.scan(one, blank, (jnp.arange(len(kept)), kept))[1]
    numbers = {name: values[1] for name, values in every.items()}
    numbers |= {f"zeta_{site}": every["zeta"][2 + k] for k, site in enumerate(sites)}
    return numbers | _ends(config, how, state.params, x, table)


def compared(error: Array, g: Array) -> dict[str, Array]:
    """Return zeta, cosine and along."""
    size, other = jnp.linalg.norm(g), jnp.linalg.norm(g + error)
    product = jnp.vdot(g, error, precision=lax.Precision.HIGHEST)
    return {
        "zeta": jnp.linalg.norm(error) / size,
        "cosine": (size * size + product) / (size * other),
        "along": product / (size * size),
    }


def _ends(config: Config, how: How, params: Any, x: Array, table: Array) -> dict[str, Array]:
    """Return means over layers: clipped and last of UP's x and W, and gamma's numbers."""
    inputs = model.student(config, how, params, x, table)[1][0]
    xs, ws = table[:, model.UP, INDEX[Site.X]], table[:, model.UP, INDEX[Site.W]]
    shares = [*jax.vmap(lambda v, row: ends_row(v, row, how.size, -1))(inputs, xs)]
    shares += jax.vmap(lambda v, row: ends_row(v, row, how.size, 0))(params["up"], ws)
    if config.norm:
        shares += jax.vmap(lambda v, row: _gamma(v, row, how.size))(params["gamma"], xs)
    else:
        shares += [jnp.full((), jnp.nan, jnp.float32)] * len(GAMMAS)
    return {name: jnp.mean(share) for name, share in zip(NAMES[3:], shares, strict=True)}


def _gamma(gamma: Array, row: Array, size: int) -> tuple[Array, ...]:
    clipped, last = ends_row(gamma, row, size, -1)
    blocks = jnp.abs(gamma).reshape(-1, size)
    ratio = jnp.mean(blocks.max(axis=1) / blocks.min(axis=1))
    kept = jnp.sort(round_row(gamma, row, size, -1).reshape(-1, size), axis=1)
    distinct = 1.0 + jnp.sum((kept[:, 1:] != kept[:, :-1]).astype(jnp.float32), axis=1)
    return clipped, last, ratio, jnp.mean(distinct)
