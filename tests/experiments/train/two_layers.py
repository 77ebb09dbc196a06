"""A model of two layers, small enough to train in a test."""

import jax
import numpy as np

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import plans, step

CONFIG = Config(
    layers=2,
    heads=2,
    width=16,
    context=12,
    vocab=16,
    batch=2,
    block=8,
    steps=20,
    warmup=2,
    lr=1e-2,
    min_lr=1e-3,
    plan="qiu-yao",
    sums="preset",
)
# another exponential and delta, P V added into O, other sums
MIXED = ("layer=0 -> plan=fp32", "layer=1 -> plan=fa2-bf16")


def tokens_of(number, config=CONFIG):
    shape = config.batch, config.context + 1
    return np.random.default_rng(number).integers(0, config.vocab, shape).astype(np.int32)


def trained(config, tables, steps=3):
    """The state of one arm after some steps, and the losses."""
    state, losses = step.start(config, 1), []
    for n in range(steps):
        state, loss, _ = step.advance(config)(
            state, tokens_of(n), plans.by_arm([tables]), np.float32([config.lr])
        )
        losses.append(loss)
    return state, np.concatenate(losses)


def same(a, b):
    leaves = zip(*map(jax.tree.leaves, (a, b)), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)
