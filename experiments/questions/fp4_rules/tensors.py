"""The tensors that the rules are tried on: of a GPT that is trained here, and real ones.

Of the GPT, after its last step and of a batch of its own: X, W and G of every linear layer, and the
products Y = X W, dX = G W^T and dW = X^T G. Of the shipped tensors (all-MiniLM-L6-v2, layers 1 and
4): Q, K, V and dO of each head, and the product Q K^T.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from roundscope.experiments.framework.study import Progress
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.operands import operands
from roundscope.experiments.train.groups import Group, blocks, drawing
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.tensors.layers import read_layers, sample_path

Array = np.ndarray
Cases = dict[str, list[tuple[tuple[str, str], Array, Array]]]
LAYERS = ("layer1", "layer4")
SEQUENCES = 2  # of the batch whose X and G are taken


def trained(config: Config, seed: int, progress: Progress) -> tuple[float, Cases]:
    """Return the last loss of a GPT of this seed, and its products."""
    settings = Settings(config=config, arms=(Arm(name="gpt", lr=config.lr, seed=seed),))
    state = one_step.start(settings.config, 1, [config.init_seed + seed])
    group, drawn = Group(settings, [0], state), drawing(settings)
    loss = float("nan")
    for block in blocks(lambda n: group.advance(n, drawn(n)), 0, config.steps):
        loss = float(block.losses[-1].mean())
        progress(block.done)
    params = jax.tree.map(lambda leaf: leaf[0], group.state.params)
    tokens = drawn(config.steps)
    few = next(iter(tokens.values()))[:SEQUENCES]
    seen = jax.device_get(operands(config)(params, few))
    return loss, linear_products(seen)


def linear_products(seen: Any) -> Cases:
    """Return Y, dX and dW of every layer and matrix, with factors along what is added up."""
    found: Cases = {"Y": [], "dX": [], "dW": []}
    for tensors in seen.values():
        for x, w, g in zip(tensors["X"], tensors["W"], tensors["G"], strict=True):
            found["Y"].append((("X", "W"), x, w.T))
            found["dX"].append((("G", ""), g, w))
            found["dW"].append((("", ""), g.T, x.T))
    return found


def heads() -> Iterator[tuple[str, Cases]]:
    """Yield "LAYER, head N" and the tensors and scores of the head, of the shipped tensors."""
    for layer in LAYERS:
        [x] = read_layers(sample_path(), layer=layer)
        for head in range(x.q.shape[2]):
            roles = (np.asarray(a) for a in (x.q, x.k, x.v, x.do))
            q, k, v, do = (a[0, :, head].astype(np.float32) for a in roles)
            cases: Cases = {
                "S": [(("Q, K, V", "Q, K, V"), q, k)],
                "V dO^T": [(("Q, K, V", "dO"), v, do)],
            }
            yield f"{layer}, head {head}", cases
