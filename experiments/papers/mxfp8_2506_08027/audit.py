"""What block formats do to the operands of a training step.

Every tensor of a BF16 run is rounded, at some steps, under every scale rule and format. Of an
operand V and its rounded copy Q:

    saturated   share of numbers that the block's scale cannot reach (|V| / X above the largest
                element)
    underflow   share of numbers other than 0 that become 0
    shrink      sum (Q - V) sign V / sum |V|: the signed part; below 0: numbers get smaller
    error       |Q - V| / |V|, Frobenius norms
    apart       |Q_row - Q_col| / |V|: of the two copies of a tensor, blocked along either axis
"""

from functools import lru_cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.blocks.format import ScaleRule, block_format
from roundscope.emu.blocks.traced import ends_row, round_even, row_of
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear_plans import LinearPlans, formats_of, how_of
from roundscope.experiments.train.gpt.linear_words import BLOCK, MATRICES, Matrix
from roundscope.experiments.train.mx import Site

RULES = (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.RCEIL, ScaleRule.EVEN)
ELEMENTS = {"E4M3": "mxfp8_e4m3", "E5M2": "mxfp8_e5m2"}
CASES = tuple(product(ELEMENTS, RULES))
ROWS = np.stack([row_of(block_format(ELEMENTS[name], rule=rule)) for name, rule in CASES])
NUMBERS = ("saturated", "underflow", "shrink", "error")
# the two copies of a tensor: blocked along the row's axis, and along the column's
COPIES = {"X": (Site.X, Site.X_W), "W": (Site.W, Site.W_X), "G": (Site.G_X, Site.G_W)}
# the names of matrices in the tree of parameters
NAMES = {Matrix.QKV: "qkv", Matrix.PROJ: "proj", Matrix.FC1: "up", Matrix.FC2: "down"}

Row = dict[str, Any]
Taps = dict[Matrix, tuple[Array, ...]]


def audit(config: Config, params: Any, tokens: np.ndarray) -> list[Row]:
    """Return a row per layer, matrix, operand (an event's name), element format and rule.

    params are those of one arm, tokens are (B, T + 1).
    """
    rows = []
    for matrix, tensors in operands(config)(params, tokens).items():
        for tensor, values in tensors.items():
            sites = COPIES[tensor]
            numbers, apart = jax.device_get(_measured(values, sites[0].axis % 2, sites[1].axis % 2))
            places = product(range(config.layers), enumerate(CASES), enumerate(sites))
            rows += [
                {
                    "layer": layer,
                    "matrix": str(matrix),
                    "operand": str(site),
                    "element": element,
                    "rule": str(rule),
                    **{name: float(numbers[name][layer, i, copy]) for name in NUMBERS},
                    "apart": float(apart[layer, i]),
                }
                for layer, (i, (element, rule)), (copy, site) in places
            ]
    return rows


@lru_cache(8)
def operands(config: Config) -> Any:
    """Return a function (params, tokens) -> matrix -> X, W, G of shape (layers, rows, columns).

    These are what the products of an FP32 step read.
    """
    formats = formats_of(config, ["matrix=all -> fp32"])
    assert formats is not None
    how, table = how_of([formats]), formats.table()

    def read(params: Any, tokens: Array) -> dict[Matrix, dict[str, Array]]:
        layers = params["layers"]
        wide = {
            "qkv": (config.width, -1),
            "proj": (-1, config.width),
            "up": (config.width, -1),
            "down": (-1, config.width),
        }
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


@partial(jax.jit, static_argnums=(1, 2))
def _measured(values: Array, row: int, column: int) -> tuple[dict[str, Array], Array]:
    """Return NUMBERS (layers, cases, 2 copies) and apart (layers, cases) of a tensor.

    The tensor is (layers, rows, columns).
    """

    def one(v: Array, case: Array) -> tuple[dict[str, Array], Array]:
        kept = [round_even(v, case, BLOCK, axis) for axis in (row, column)]
        each = [_of_copy(v, q, case, axis) for q, axis in zip(kept, (row, column), strict=True)]
        numbers = {name: jnp.stack([copy[name] for copy in each]) for name in NUMBERS}
        return numbers, jnp.linalg.norm(kept[0] - kept[1]) / jnp.linalg.norm(v)

    cases = jnp.asarray(ROWS)
    every: tuple[dict[str, Array], Array]
    every = jax.lax.map(lambda v: jax.lax.map(lambda case: one(v, case), cases), values)
    return every


def _of_copy(v: Array, q: Array, case: Array, axis: int) -> dict[str, Array]:
    def share(flags: Array, of: Array | float) -> Array:
        return flags.sum().astype(jnp.float32) / of

    return {
        "saturated": ends_row(v, case, BLOCK, axis)[0],
        "underflow": share((q == 0) & (v != 0), share(v != 0, 1.0)),
        "shrink": ((q - v) * jnp.sign(v)).sum() / jnp.abs(v).sum(),
        "error": jnp.linalg.norm(q - v) / jnp.linalg.norm(v),
    }
