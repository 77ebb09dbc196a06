"""One step of all arms of a student at once, with weights in FP32; and the rows of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.train import state as states
from roundscope.experiments.train import step
from roundscope.experiments.train.mx import How, reseeded
from roundscope.experiments.train.state import State
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.config import Config

__all__ = ["Arms", "State", "advance", "batches", "numbers_only", "start"]

STUDENT, TEACHER, ROWS = 0, 1, 2  # what a seed's keys are for


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What differs between arms, as data.

    table (A, layers, matrices, events, FIELDS), lr (A,) the rates, beta (A,) 1 where it is trained.
    """

    table: Any
    lr: Any
    beta: Any


def numbers_only(config: Config) -> Config:
    """Return the config without what does not enter a step.

    Runs that differ only in that share an executable.
    """
    return replace(config, seed=0, measure_every=0)


def start(config: Config, seeds: Sequence[int]) -> State:
    """Return arms at step 0, each with the weights of its seed, whatever arms are beside it."""
    return states.start(
        _fresh(numbers_only(config)), [(config.seed + seed) % 2**32 for seed in seeds]
    )


@lru_cache(16)
def _fresh(config: Config) -> Callable[[Any], State]:
    def one(seed: Any) -> State:
        params = model.init(config, jax.random.fold_in(jax.random.key(seed), STUDENT), config.norm)
        return states.fresh(config.optimiser, params)

    return jax.jit(one)


@lru_cache(16)
def batches(config: Config) -> Callable[[Any, Any], tuple[Array, Array]]:
    """Return the function (seeds (S,), step) -> x, y (S, batch, width).

    x are fresh rows, y the teacher's answers in FP32 with their noise.
    """
    config = numbers_only(config)

    def one(seed: Array, step: Array) -> tuple[Array, Array]:
        key = jax.random.key(seed)
        taught = model.init(config, jax.random.fold_in(key, TEACHER), norm=False)
        rows, noise = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, ROWS), step))
        x = jax.random.normal(rows, (config.batch, config.width), jnp.float32)
        return x, model.teacher(config, taught, x) + np.float32(config.noise) * jax.random.normal(
            noise, x.shape, jnp.float32
        )

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


@lru_cache(16)
def advance(config: Config, how: How) -> Callable[..., step.Seen]:
    """Return the jitted step: (state, arms, x, y, of) -> (state, losses (A,), gradient norms (A,)).

    Losses and norms are those at the weights before the step. x, y are (S, batch, width); of (A,):
    which of them is an arm's.
    """
    config = numbers_only(config)

    def one(state: State, arm: Arms, x: Array, y: Array) -> step.Seen:
        table = reseeded(arm.table, state.step) if how.drawn else arm.table

        # applied to the updates too: Adam's moments would go on moving a beta without a gradient
        def trained(tree: Any) -> Any:
            return tree | ({"beta": tree["beta"] * arm.beta} if "beta" in tree else {})

        def loss(params: Any) -> Array:
            return model.loss(params, config, how, x, y, table)

        return step.one(config.optimiser, state, arm.lr, loss, trained)

    return step.compiled(lambda state, arms, x, y, of: jax.vmap(one)(state, arms, x[of], y[of]))
