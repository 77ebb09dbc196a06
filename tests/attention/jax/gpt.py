"""A GPT in plain JAX, small enough to read: parameters, loss, and a step of a training.

Layer n calls attention[n](q, k, v, is_causal=True), a function like jax.nn.dot_product_attention:
that function itself, an emulated plan, or one that is tapped.
"""

from functools import partial

import jax
import jax.numpy as jnp

from roundscope import attend
from roundscope.jax import tap

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 2, 2, 32, 16, 32


def init(key, layers=LAYERS, heads=HEADS, width=WIDTH, context=CONTEXT, vocabulary=VOCABULARY):
    """Return random parameters."""
    shapes = {
        "qkv": (layers, width, 3, heads, width // heads),
        "proj": (layers, heads, width // heads, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
    }
    tables = {"embedding": (vocabulary, width), "position": (context, width)}
    keys = jax.random.split(key, len(shapes) + len(tables))
    normal = {
        name: jax.random.normal(own, shape)
        for own, (name, shape) in zip(keys, (shapes | tables).items(), strict=True)
    }
    return normal | {name: 0.2 * normal[name] for name in shapes}


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def block(attention, w, x):
    """Return the output (B, T, D) of one layer; w: its weights."""
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dcnh->btcnh", norm(x), w["qkv"]), 2, 0)
    x = x + jnp.einsum("btnh,nhd->btd", attention(q, k, v, is_causal=True), w["proj"])
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def loss(params, tokens, attention):
    """Return the mean cross-entropy of the next tokens; tokens (B, T + 1)."""
    x = params["embedding"][tokens[:, :-1]] + params["position"][: tokens.shape[1] - 1]
    for n, own in enumerate(attention):
        x = block(own, {name: params[name][n] for name in ("qkv", "proj", "up", "down")}, x)
    logits = jax.nn.log_softmax(norm(x) @ params["embedding"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


@partial(jax.jit, static_argnums=(2,))
def step(params, tokens, attention, rate=0.1):
    """Return parameters after a step of gradient descent, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(params, tokens, attention)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value


def on_plans(*plans):
    """Return emulated attention for each layer, tapped: `loss` and `step` take it."""
    return tuple(tap(partial(attend, plan=p), f"layers.{n}") for n, p in enumerate(plans))
