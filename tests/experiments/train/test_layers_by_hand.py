"""A model whose layers have plans of their own, against the same layers written out.

The two are different programs, whose FP32 norms and products XLA compiles to the same last bits
only as users compile them (`make thorough`).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan, attend
from roundscope.attention.plans.traced import head_plans
from roundscope.experiments.train import step as a_step
from roundscope.experiments.train.gpt import linear, model, plans, step
from roundscope.experiments.train.gpt.interventions import plans_of
from tests.experiments.train.two_layers import CONFIG, MIXED, same, tokens_of, trained


def by_hand(params, tokens, own, config):
    """The loss of the model with a plan for each layer, one layer after the other."""

    def layer(plan, x, w):
        qkv = linear.linear(
            model.layer_norm(x, w["norm1"]), w["qkv"].reshape(config.width, -1), config.matmul
        ).reshape(*x.shape[:2], 3, config.heads, config.head_width)
        tiles = {"block_q": config.tile, "block_k": config.tile}
        own = head_plans([plan] * config.heads)
        out = attend(*(qkv[:, :, i] for i in range(3)), plan=own, is_causal=True, **tiles)
        proj = w["proj"].reshape(config.width, config.width)
        x = x + linear.linear(out.reshape(x.shape), proj, config.matmul)
        h = linear.linear(model.layer_norm(x, w["norm2"]), w["up"], config.matmul)
        return x + linear.linear(jax.nn.gelu(h, approximate=False), w["down"], config.matmul), None

    x = linear.embed(params["embedding"], tokens[:, :-1], config.vocab)
    x = x + params["position"][: x.shape[1]]
    for n, plan in enumerate(own):  # a loop of one layer, since another loop has other last bits
        w = jax.tree.map(lambda leaf, n=n: leaf[n : n + 1], params["layers"])
        x, _ = jax.lax.scan(partial(layer, plan), x, w)
    last = model.layer_norm(x, params["norm"])
    logits = linear.linear(last, params["embedding"].T, config.matmul)
    return linear.cross_entropy(logits, tokens[:, 1:])


@pytest.mark.thorough  # CI asks in test_plans_of_layers where each layer's plan shows
def test_two_layers_with_two_plans_are_two_calls_of_attend():
    """A layer that has its neighbour's plan, forward or backward, or a mixture of both."""
    own = Plan.preset("fp32"), Plan.preset("fa2-bf16")

    def one(state, tokens):
        lr = jnp.float32(CONFIG.lr)
        return a_step.one(CONFIG, state, lr, lambda p: by_hand(p, tokens, own, CONFIG))

    advance = a_step.compiled(jax.vmap(one, in_axes=(0, None)))
    state, losses = step.start(CONFIG, 1), []
    for n in range(3):
        state, loss, _ = advance(state, tokens_of(n))
        losses.append(loss)
    ours = trained(CONFIG, plans.by_layer(plans_of(CONFIG, MIXED)))
    assert same(ours[1], np.concatenate(losses)) and same(ours[0], state)
