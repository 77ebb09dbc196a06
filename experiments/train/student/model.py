"""The student and its teacher: weights, what a layer computes, the loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.train.mx import How, Site, linear, passed
from roundscope.experiments.train.student.arms import MATRICES, Matrix
from roundscope.experiments.train.student.config import Config

Params = dict[str, Array]  # every leaf with a leading axis of layers
EPSILON = np.float32(1e-5)
UP, DOWN, GATE = (MATRICES.index(m) for m in (Matrix.UP, Matrix.DOWN, Matrix.GATE))
PHIS: dict[str, Callable[..., Array]] = {
    "relu": lambda h, _: jax.nn.relu(h),
    "gelu": lambda h, _: jax.nn.gelu(h, approximate=False),
    "swiglu": lambda h, gate: jax.nn.silu(gate) * h,
}


def init(config: Config, key: Array, norm: bool) -> Params:
    """Return weights uniform in +-1 / sqrt(inputs), as torch.nn.Linear's.

    No shifts, gamma 1, beta 0.
    """
    return jax.vmap(lambda k: _layer(config, jax.random.fold_in(key, k), norm))(
        jnp.arange(config.depth)
    )


def _layer(config: Config, key: Array, norm: bool) -> dict[str, Array]:
    d, hidden = config.width, config.hidden
    shapes = {"up": (d, hidden), "down": (hidden, d)}
    if config.phi == "swiglu":
        shapes["gate"] = (d, hidden)
    keys = jax.random.split(key, 3)
    weights = {name: _uniform(keys[i], shape) for i, (name, shape) in enumerate(shapes.items())}
    if norm:
        weights |= {"gamma": jnp.ones(d, jnp.float32), "beta": jnp.zeros(d, jnp.float32)}
    return weights


def _uniform(key: Array, shape: tuple[int, int]) -> Array:
    end = 1.0 / float(np.sqrt(shape[0]))
    return jax.random.uniform(key, shape, jnp.float32, -end, end)


def normalised(a: Array) -> Array:
    """Return (a - mean) / sqrt(variance + 1e-5) over the features."""
    centered = a - a.mean(axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered * centered).mean(axis=-1, keepdims=True) + EPSILON)


def layer(
    config: Config, how: How, p: dict[str, Array], a: Array, table: Array
) -> tuple[Array, tuple[Array, Array]]:
    """Return (A + DOWN phi(UP LN(A)), (input of UP, input of DOWN)).

    table: (matrices, events, FIELDS).
    """
    h, gate, x = opened(how, p, a, table)
    out, inner = closed(config, how, p, h, gate, table)
    return a + out, (x, inner)


def opened(how: How, p: dict[str, Array], a: Array, table: Array) -> tuple[Array, Array, Array]:
    """Return UP LN(A), GATE LN(A) (without a gate: UP's), and LN(A)."""
    rows = table[0]  # of events without a matrix
    x = a
    if "gamma" in p:
        scaled = (
            normalised(passed(how, None, Site.DLN, a, rows))
            * passed(how, Site.GAMMA, None, p["gamma"], rows)
            + p["beta"]
        )
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
