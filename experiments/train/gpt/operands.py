"""`operands`: the inputs X, weights W and gradients G of a GPT's linear layers in a step, FP32."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.interventions import MATRICES, Matrix
from roundscope.experiments.train.gpt.linear import LinearPlans, formats_of, how_of

# the names of matrices in the tree of parameters
NAMES = {Matrix.QKV: "qkv", Matrix.PROJ: "proj", Matrix.FC1: "up", Matrix.FC2: "down"}
Taps = dict[Matrix, tuple[Array, ...]]


@lru_cache(8)
def operands(config: Config) -> Any:
    """Return (params, tokens) -> matrix -> X, W, G (layers, rows, columns), as an FP32 step has."""
    formats = formats_of(config, ["matrix=all -> fp32"])
    assert formats is not None
    how, table = how_of([formats]), formats.table()

    def read(params: Any, tokens: Array) -> dict[Matrix, dict[str, Array]]:
        layers = params["layers"]
        into, out = (config.width, -1), (-1, config.width)
        wide = {"qkv": into, "proj": out, "up": into, "down": out}
        weights = {m: layers[name].reshape(config.layers, *wide[name]) for m, name in NAMES.items()}
        rows = tokens.shape[0] * (tokens.shape[1] - 1)
        taps = {
            m: tuple(jnp.zeros((config.layers, rows, n), jnp.float32) for n in w.shape[1:])
            for m, w in weights.items()
        }

        def one(taps: Taps) -> Array:
            return model.loss(
                params, tokens, None, config, linears=LinearPlans(how, jnp.asarray(table), taps)
            )

        seen = jax.grad(one)(taps)
        return {m: {"X": seen[m][0], "W": weights[m], "G": seen[m][1]} for m in MATRICES}

    return jax.jit(read)
