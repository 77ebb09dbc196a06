"""The student and its teacher: weights, what a layer computes, the loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.linear import How, linear, passed
from roundscope.experiments.train.student.sites import MATRICES, Matrix, Site

Params = dict[str, Array]  # every leaf with a leading axis of layers
EPSILON = np.float32(1e-5)
UP, DOWN, GATE = (MATRICES.index(m) for m in (Matrix.UP, Matrix.DOWN, Matrix.GATE))
PHIS: dict[str, Callable[..., Array]] = {
    "relu": lambda h, _: jax.nn.relu(h),
    "gelu": lambda h, _: jax.nn.gelu(h, approximate=False),
    "swiglu": lambda h, gate: jax.nn.silu(gate) * h,
}


def init(config: Config, key: Array, norm: bool) -> Params:
    """Weights uniform in +-1 / sqrt(inputs), as torch.nn.Linear's, without shifts; gamma 1,
    beta 0.
    """
    return jax.vmap(lambda k: _layer(config, jax.random.fold_in(key, k), norm))(
        jnp.arange(config.depth)
    )


def _layer(config: Config, key: Array, norm: bool) -> dict[str, Array]:
    d, hidden = config.width, config.hidden
    shapes = {"up": (d, hidden), "down": (hidden, d)} | (
        {"gate": (d, hidden)} if config.phi == "swiglu" else {}
    )
    keys = jax.random.split(key, 3)
    found = {name: _uniform(keys[i], shape) for i, (name, shape) in enumerate(shapes.items())}
    return found | (
        {"gamma": jnp.ones(d, jnp.float32), "beta": jnp.zeros(d, jnp.float32)} if norm else {}
    )


def _uniform(key: Array, shape: tuple[int, int]) -> Array:
    end = 1.0 / float(np.sqrt(shape[0]))
    return jax.random.uniform(key, shape, jnp.float32, -end, end)


def normalised(a: Array) -> Array:
    """(a - mean) / sqrt(variance + 1e-5) over the features."""
    centred = a - a.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + EPSILON)


def layer(
    config: Config, how: How, p: dict[str, Array], a: Array, table: Array
) -> tuple[Array, tuple[Array, Array]]:
    """(A + DOWN phi(UP LN(A)), (input of UP, input of DOWN)); table: (matrices, events, FIELDS)."""
    h, gate, x = opened(how, p, a, table)
    out, inner = closed(config, how, p, h, gate, table)
    return a + out, (x, inner)


def opened(how: How, p: dict[str, Array], a: Array, table: Array) -> tuple[Array, Array, Array]:
    """UP LN(A), GATE LN(A) (without a gate: UP's), LN(A)."""
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
    """DOWN phi(h) and phi(h)."""
    rows = table[0]
    h, gate = (
        passed(how, None, Site.DPHI, h, rows),
        (gate if "gate" not in p else passed(how, None, Site.DPHI, gate, rows)),
    )
    inner = passed(how, Site.PHI, None, PHIS[config.phi](h, gate), rows)
    return linear(how, inner, p["down"], table[DOWN]), inner


def student(
    config: Config, how: How, params: Params, x: Array, table: Array
) -> tuple[Array, tuple[Array, Array]]:
    """The output (batch, width), and the inputs of UP and DOWN, (layers, batch, ...); table:
    (layers, matrices, events, FIELDS).
    """
    found: tuple[Array, tuple[Array, Array]] = jax.lax.scan(
        lambda a, own: layer(config, how, own[0], a, own[1]), x, (params, table)
    )
    return found


def teacher(config: Config, params: Params, x: Array) -> Array:
    """The same without LayerNorm, in FP32."""

    def times(a, b):
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    def one(a: Array, p: Params) -> tuple[Array, None]:
        h = times(a, p["up"])
        return (
            a + times(PHIS[config.phi](h, times(a, p["gate"]) if "gate" in p else h), p["down"]),
            None,
        )

    return jax.lax.scan(one, x, params)[0]


def loss(params: Params, config: Config, how: How, x: Array, y: Array, table: Array) -> Array:
    """Mean squared error over rows and features."""
    found: Any = student(config, how, params, x, table)[0] - y
    return jnp.mean(found * found)
