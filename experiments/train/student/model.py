"""The student and its teacher: weights, what a layer computes, the loss.

A step is one of all arms at once, with weights in FP32; the rows of a step are fresh.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.train import step
from roundscope.experiments.train.mx import How, Site, linear, passed, reseeded
from roundscope.experiments.train.step import State
from roundscope.experiments.train.student.arms import MATRICES, Config, Matrix

Params = dict[str, Array]  # every leaf with a leading axis of layers
EPSILON = np.float32(1e-5)
UP, DOWN, GATE = (MATRICES.index(m) for m in (Matrix.UP, Matrix.DOWN, Matrix.GATE))
PHIS: dict[str, Callable[..., Array]] = {
    "relu": lambda h, _: jax.nn.relu(h),
    "gelu": lambda h, _: jax.nn.gelu(h, approximate=False),
    "swiglu": lambda h, gate: jax.nn.silu(gate) * h,
}


def init(config: Config, key: Array, norm: bool) -> Params:
    """Return weights as torch.nn.Linear's, uniform in +-1 / sqrt(inputs); gamma 1, beta 0."""
    d, hidden = config.width, config.hidden
    shapes = {"up": (d, hidden), "down": (hidden, d)}
    shapes |= {"gate": (d, hidden)} if config.phi == "swiglu" else {}

    def one(number: Array) -> Params:
        keys, weights = jax.random.split(jax.random.fold_in(key, number), 3), {}
        for i, (name, shape) in enumerate(shapes.items()):
            end = 1.0 / float(np.sqrt(shape[0]))
            weights[name] = jax.random.uniform(keys[i], shape, jnp.float32, -end, end)
        if norm:
            weights |= {"gamma": jnp.ones(d, jnp.float32), "beta": jnp.zeros(d, jnp.float32)}
        return weights

    return jax.vmap(one)(jnp.arange(config.depth))


def normalised(a: Array) -> Array:
    """Return (a - mean) / sqrt(variance + 1e-5) over the features."""
    centered = a - a.mean(axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered * centered).mean(axis=-1, keepdims=True) + EPSILON)


def layer(
    config: Config, how: How, p: dict[str, Array], a: Array, table: Array
) -> tuple[Array, tuple[Array, Array]]:
    """Return (A + DOWN phi(UP LN(A)), (inputs of UP, DOWN)); table (matrices, events, FIELDS)."""
    h, gate, x = opened(how, p, a, table)
    out, inner = closed(config, how, p, h, gate, table)
    return a + out, (x, inner)


def opened(how: How, p: dict[str, Array], a: Array, table: Array) -> tuple[Array, Array, Array]:
    """Return UP LN(A), GATE LN(A) (without a gate: UP's), and LN(A)."""
    rows = table[0]  # of events without a matrix
    x = a
    if "gamma" in p:
        scaled = normalised(passed(how, None, Site.DLN, a, rows))
        scaled = scaled * passed(how, Site.GAMMA, None, p["gamma"], rows) + p["beta"]
        x = passed(how, Site.LN, None, scaled, rows)
    h = linear(how, x, p["up"], table[UP])
    return h, linear(how, x, p["gate"], table[GATE]) if "gate" in p else h, x


def closed(
    config: Config, how: How, p: dict[str, Array], h: Array, gate: Array, table: Array
) -> tuple[Array, Array]:
    """Return DOWN phi(h) and phi(h)."""
    rows = table[0]
    h = passed(how, None, Site.DPHI, h, rows)
    if "gate" in p:
        gate = passed(how, None, Site.DPHI, gate, rows)
    inner = passed(how, Site.PHI, None, PHIS[config.phi](h, gate), rows)
    return linear(how, inner, p["down"], table[DOWN]), inner


def student(
    config: Config, how: How, params: Params, x: Array, table: Array
) -> tuple[Array, tuple[Array, Array]]:
    """Return the output (batch, width), and the inputs of UP and DOWN, (layers, batch, ...).

    table: (layers, matrices, events, FIELDS).
    """
    found: tuple[Array, tuple[Array, Array]] = jax.lax.scan(
        lambda a, own: layer(config, how, own[0], a, own[1]), x, (params, table)
    )
    return found


def teacher(config: Config, params: Params, x: Array) -> Array:
    """Return the teacher's output: a student without LayerNorm, in FP32."""

    def times(a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    def one(a: Array, p: Params) -> tuple[Array, None]:
        h = times(a, p["up"])
        gate = times(a, p["gate"]) if "gate" in p else h
        return a + times(PHIS[config.phi](h, gate), p["down"]), None

    return jax.lax.scan(one, x, params)[0]


def loss(params: Params, config: Config, how: How, x: Array, y: Array, table: Array) -> Array:
    """Return the mean squared error over rows and features."""
    found: Any = student(config, how, params, x, table)[0] - y
    return jnp.mean(found * found)


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
    """Return the config without what enters no step, so that runs share executables."""
    return replace(config, seed=0, measure_every=0)


def start(config: Config, seeds: Sequence[int]) -> State:
    """Return arms at step 0, each with the weights of its seed, whatever arms are beside it."""
    words = [(config.seed + seed) % 2**32 for seed in seeds]
    return step.start(_fresh(numbers_only(config)), words)


@lru_cache(16)
def _fresh(config: Config) -> Callable[[Any], State]:
    def one(seed: Any) -> State:
        params = init(config, jax.random.fold_in(jax.random.key(seed), STUDENT), config.norm)
        return step.fresh(config.optimiser, params)

    return jax.jit(one)


@lru_cache(16)
def batches(config: Config) -> Callable[[Any, Any], tuple[Array, Array]]:
    """Return the function (seeds (S,), step) -> fresh rows x, answers y: (S, batch, width)."""
    config = numbers_only(config)

    def one(seed: Array, step: Array) -> tuple[Array, Array]:
        key = jax.random.key(seed)
        taught = init(config, jax.random.fold_in(key, TEACHER), norm=False)
        rows, noise = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, ROWS), step))
        x = jax.random.normal(rows, (config.batch, config.width), jnp.float32)
        drawn = jax.random.normal(noise, x.shape, jnp.float32)
        return x, teacher(config, taught, x) + np.float32(config.noise) * drawn

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

        own = partial(loss, config=config, how=how, x=x, y=y, table=table)
        return step.one(config.optimiser, state, arm.lr, own, trained)

    return step.compiled(lambda state, arms, x, y, of: jax.vmap(one)(state, arms, x[of], y[of]))
