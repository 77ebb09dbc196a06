"""One step of all arms at once: gradients and Adam, the weights themselves in FP32; and the rows of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from roundscope.experiments.compile_cache import deterministic
from roundscope.experiments.train import optimiser
from roundscope.experiments.train.mx.formats import reseeded
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.linear import How

STUDENT, TEACHER, ROWS = 0, 1, 2  # what a seed's keys are for


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Arms in training, a pytree; every leaf has a leading axis of arms. step (A,) int32: steps done."""

    params: Any
    opt_state: Any
    step: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What differs between arms, as data: tables (A, layers, matrices, events, FIELDS), rates (A,), beta (A,) 1 where it is trained."""

    table: Any
    lr: Any
    beta: Any


def numbers_only(config: Config) -> Config:
    """The config without what does not enter a step, so that runs that differ in it share an executable."""
    return replace(config, seed=0, measure_every=0)


def start(config: Config, seeds: Sequence[int]) -> State:
    """Arms at step 0, each with the weights of its seed, whatever arms are beside it."""
    fresh = _fresh(numbers_only(config))
    arms = [fresh(np.uint32((config.seed + seed) % 2**32)) for seed in seeds]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *arms)


@lru_cache(16)
def _fresh(config: Config) -> Callable[[Any], State]:
    def fresh(seed: Any) -> State:
        params = model.init(config, jax.random.fold_in(jax.random.key(seed), STUDENT), config.norm)
        return State(params=params, opt_state=optimiser.make(config.optimiser).init(params), step=jnp.zeros((), jnp.int32))

    return jax.jit(fresh)


@lru_cache(16)
def batches(config: Config) -> Callable[[Any, Any], tuple[Array, Array]]:
    """(seeds (S,), step) -> x, y (S, batch, width): fresh rows, the teacher's answers in FP32 and their noise."""
    config = numbers_only(config)

    def one(seed: Array, step: Array) -> tuple[Array, Array]:
        key = jax.random.key(seed)
        taught = model.init(config, jax.random.fold_in(key, TEACHER), norm=False)
        rows, noise = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, ROWS), step))
        x = jax.random.normal(rows, (config.batch, config.width), jnp.float32)
        return x, model.teacher(config, taught, x) + np.float32(config.noise) * jax.random.normal(noise, x.shape, jnp.float32)

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


@lru_cache(16)
def advance(config: Config, how: How) -> Callable[..., tuple[State, Array, Array]]:
    """The jitted step: (state, arms, x, y, of) -> (state, losses (A,), gradient norms (A,)) at the weights that came in.

    x, y  (S, batch, width); of (A,): which of them is an arm's
    """
    config = numbers_only(config)

    def one(state: State, arm: Arms, x: Array, y: Array) -> tuple[State, Array, Array]:
        table = reseeded(arm.table, state.step) if how.drawn else arm.table
        loss, gradients = jax.value_and_grad(model.loss)(state.params, config, how, x, y, table)
        gradients |= {"beta": gradients["beta"] * arm.beta} if "beta" in gradients else {}
        now = optimiser.rate(config.optimiser, state.step, arm.lr)
        with jax.numpy_dtype_promotion("standard"):  # optax is written for it
            updates, opt_state = optimiser.make(config.optimiser).update(gradients, state.opt_state, state.params, lr=now)
        # Adam's memory would go on moving a beta without a gradient
        updates |= {"beta": updates["beta"] * arm.beta} if "beta" in updates else {}
        params = optax.apply_updates(state.params, updates)
        return State(params=params, opt_state=opt_state, step=state.step + 1), loss, optax.tree.norm(gradients)

    def all_arms(state: State, arms: Arms, x: Array, y: Array, of: Array) -> tuple[State, Array, Array]:
        return jax.vmap(one)(state, arms, x[of], y[of])

    return jax.jit(all_arms, compiler_options=deterministic())
