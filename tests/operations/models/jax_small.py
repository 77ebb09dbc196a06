"""A tiny Llama of plain JAX functions, and changes of its arithmetic whose culprit is known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

VOCABULARY, LAYERS, WIDTH, HEADS, GROUPS, HEAD = 128, 2, 64, 4, 2, 16
BF16, FP32 = jnp.bfloat16, jnp.float32


def parameters(layers=LAYERS, width=WIDTH):
    """Return random weights in BF16, always the same."""
    random = np.random.default_rng(0)

    def matrix(rows, columns):
        return jnp.asarray(random.normal(0, rows**-0.5, (rows, columns)), BF16)

    def weight():  # of ones it would hide where it is cast
        return jnp.asarray(1 + 0.3 * random.normal(size=width), BF16)

    def layer():
        inner, heads, groups = 11 * width // 4, width, width // 2
        return {
            "input_norm": weight(),
            "q": matrix(width, heads),
            "k": matrix(width, groups),
            "v": matrix(width, groups),
            "o": matrix(heads, width),
            "post_norm": weight(),
            "gate": matrix(width, inner),
            "up": matrix(width, inner),
            "down": matrix(inner, width),
        }

    return {
        "embed": matrix(VOCABULARY, width),
        "layers": [layer() for _ in range(layers)],
        "norm": weight(),
        "head": matrix(width, VOCABULARY),
    }


def tokens(batch=1, count=32):
    """Return tokens, of which a larger batch begins with those of a smaller one."""
    return jnp.asarray(np.random.default_rng(1).integers(0, VOCABULARY, (8, count))[:batch])


def rms_norm(x, weight):
    wide = x.astype(FP32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype) * weight


def late_rms_norm(x, weight):
    """RMSNorm whose result is cast after it is multiplied by the weight."""
    wide = x.astype(FP32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * weight.astype(FP32)).astype(x.dtype)


def linear(x, weight):
    return x @ weight


def split_linear(x, weight):
    """The sum of two products, each of which is rounded."""
    k = x.shape[-1] // 2
    return x[..., :k] @ weight[:k] + x[..., k:] @ weight[k:]


def fp8_linear(x, weight):
    """A product whose operands are E4M3 with a scale for each tensor."""

    def quantized(x):
        scale = jnp.max(jnp.abs(x.astype(FP32))) / 448
        return (x.astype(FP32) / scale).astype(jnp.float8_e4m3fn).astype(FP32) * scale

    return (quantized(x) @ quantized(weight)).astype(x.dtype)


def rope_table(positions, dtype=FP32):
    angle = positions.astype(dtype)[:, None] * (10000 ** (-jnp.arange(0, HEAD, 2) / HEAD)).astype(
        dtype
    )
    return jnp.cos(angle).astype(BF16)[:, None], jnp.sin(angle).astype(BF16)[:, None]


def rope(x, cos, sin):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def sdpa(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def eager_attention(q, k, v):
    """Scores, softmax and their product, each rounded to BF16."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(seen, scores, jnp.finfo(q.dtype).min)
    return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores, -1), v)


def llama(
    parameters,
    tokens,
    norm=rms_norm,
    down=linear,
    attention=sdpa,
    table=FP32,
    residual=BF16,
):
    """Return logits (B, T, vocabulary)."""
    h = parameters["embed"][tokens].astype(residual)
    cos, sin = rope_table(jnp.arange(tokens.shape[1]), table)
    for layer in parameters["layers"]:
        x = norm(h.astype(BF16), layer["input_norm"])
        q, k, v = (linear(x, layer[name]).reshape(*x.shape[:2], -1, HEAD) for name in "qkv")
        out = attention(rope(q, cos, sin), rope(k, cos, sin), v)
        h = h + linear(out.reshape(x.shape), layer["o"]).astype(residual)
        x = norm(h.astype(BF16), layer["post_norm"])
        gated = jax.nn.silu(linear(x, layer["gate"])) * linear(x, layer["up"])
        h = h + down(gated, layer["down"]).astype(residual)
    return linear(norm(h.astype(BF16), parameters["norm"]), parameters["head"])


def changed(**changes):
    """Return the model with some changes of its arithmetic."""
    return partial(llama, **changes)


def jitted_by_hand(parameters, tokens):
    """What XLA makes of the model on a CPU: norms read a sum of the residual stream before it is
    rounded, and the next sum reads it rounded.
    """

    def norm(wide, weight):
        wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
        return wide.astype(BF16) * weight

    def summed(wide, out):
        return wide.astype(BF16).astype(FP32) + out.astype(FP32)

    wide = parameters["embed"][tokens].astype(FP32)
    cos, sin = rope_table(jnp.arange(tokens.shape[1]))
    for layer in parameters["layers"]:
        x = norm(wide, layer["input_norm"])
        q, k, v = ((x @ layer[name]).reshape(*x.shape[:2], -1, HEAD) for name in "qkv")
        out = sdpa(rope(q, cos, sin), rope(k, cos, sin), v)
        wide = summed(wide, out.reshape(x.shape) @ layer["o"])
        x = norm(wide, layer["post_norm"])
        gated = jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])
        wide = summed(wide, gated @ layer["down"])
    return norm(wide, parameters["norm"]) @ parameters["head"]


def decoded(parameters, tokens, cache):
    """Return logits of tokens behind those of a cache, and the new cache."""
    start = cache[0][0].shape[1] if cache else 0
    h = parameters["embed"][tokens]
    cos, sin = rope_table(jnp.arange(start, start + tokens.shape[1]))
    kept = []
    for i, layer in enumerate(parameters["layers"]):
        x = rms_norm(h, layer["input_norm"])
        q, k, v = (linear(x, layer[name]).reshape(*x.shape[:2], -1, HEAD) for name in "qkv")
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        if cache:
            k, v = (jnp.concatenate(pair, 1) for pair in zip(cache[i], (k, v), strict=True))
        kept.append((k, v))
        out = jax.nn.dot_product_attention(q, k, v, is_causal=not cache)
        h = h + linear(out.reshape(x.shape), layer["o"])
        x = rms_norm(h, layer["post_norm"])
        h = h + linear(
            jax.nn.silu(linear(x, layer["gate"])) * linear(x, layer["up"]), layer["down"]
        )
    return linear(rms_norm(h, parameters["norm"]), parameters["head"]), kept


def by_token(model, tokens):
    """Run `decoded` on one token after the other."""
    logits, cache = [], []
    for t in range(tokens.shape[1]):
        out, cache = model(tokens[:, t : t + 1], cache)
        logits.append(out)
    return jnp.concatenate(logits, 1)


def log_softmax(dtype):
    """Return how log-probabilities are computed from logits in a type."""

    def logprobs(logits, tokens):
        table = jax.nn.log_softmax(logits[:, :-1].astype(dtype), -1)
        return jnp.take_along_axis(table, tokens[:, 1:, None], -1)[..., 0]

    return logprobs


def exact_logprobs(logits, tokens):
    """Return log-probabilities of logits in binary64, by NumPy alone."""
    x = np.asarray(logits, np.float64)[0, :-1]
    x = x - x.max(-1, keepdims=True)
    table = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return np.take_along_axis(table, np.asarray(tokens)[0, 1:, None], -1)[:, 0]
