"""nanoGPT in JAX: parameters are a plain dict, and attention is `attend`.

Layers are stacked along axis 0 and run by one scan, or by one for each stretch of layers whose
plans have one structure. Shapes: L layers, N heads of H features, D = N H, M = mlp_ratio D, B
sequences of T tokens, V tokens.

    embedding (V, D)   position (T, D), if asked for   head (V, D), unless tied   norm (D,)
    layers:  norm1, norm2 (L, D)   qkv (L, D, 3, N, H)   proj (L, N, H, D)   up (L, D, M)
             down (L, M, D)   norm_q, norm_k (L, H), if qk_norm   gate (L, D, N, H), if gated
             inner (L, D, M), if llama: the half of the gated layer that silu takes

W^Q of a head is qkv[layer, :, 0, head]. Residual stream, norms, softmax, logits and loss are FP32;
linear layers are as `experiments.train.gpt.linear` says, or with roundings at named events
(`LinearPlans`, there); attention is as its plan says.
"""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from roundscope.attention import Plan, attend
from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.train import mx
from roundscope.experiments.train.config import CUDNN, JAX, PALLAS, Config
from roundscope.experiments.train.gpt import offset as offsets
from roundscope.experiments.train.gpt.interventions import MATRICES, Matrix
from roundscope.experiments.train.gpt.linear import LinearPlans, cross_entropy, embed, linear
from roundscope.experiments.train.gpt.offset import Offset
from roundscope.experiments.train.gpt.plans import Planned, like_of, stretches
from roundscope.experiments.train.mx import Site

Params = dict[str, Any]
# plans of one layer: of its heads, as data; one, part of the program; or none, for JAX's own
Own = HeadPlans | Plan | None
# a function of q, k, v that returns the error of the output as delta reads it
Wrong = Callable[[Array, Array, Array], Array]
# the standard deviation of GPT-2's initial weights; for weights that write into the residual stream
# it is divided by sqrt(2 L)
SPREAD = 0.02


class Seen(NamedTuple):
    """What one layer's attention read, stacked over layers.

    x (L, B, T, D) is the input after the norm; q, k, v are (L, B, T, N, H).
    """

    x: Array
    q: Array
    k: Array
    v: Array


def init(config: Config, key: Array) -> Params:
    """Return GPT-2's initial weights, float32: normal(0.02), and scales of 1."""
    c, L, D = config, config.layers, config.width
    keys = iter(jax.random.split(key, 7))

    def normal(*shape: int, spread: float = SPREAD) -> Array:
        drawn: Array = jax.random.normal(next(keys), shape, dtype=jnp.float32)
        return jnp.asarray(jnp.float32(spread) * drawn)

    def ones(*shape: int) -> Array:
        return jnp.ones(shape, jnp.float32)

    into_residual = SPREAD / math.sqrt(2 * L)
    layers = {
        "norm1": ones(L, D),
        "norm2": ones(L, D),
        "qkv": normal(L, D, 3, c.heads, c.head_width),
        "proj": normal(L, c.heads, c.head_width, D, spread=into_residual),
        "up": normal(L, D, c.mlp_ratio * D),
        "down": normal(L, c.mlp_ratio * D, D, spread=into_residual),
    }
    if c.qk_norm:
        layers |= {name: ones(L, c.head_width) for name in ("norm_q", "norm_k")}
    more: dict[str, tuple[int, ...]] = {"gate": (L, D, c.heads, c.head_width)} if c.gated else {}
    more |= {"inner": (L, D, c.mlp_ratio * D)} if c.llama else {}
    for number, (name, shape) in enumerate(more.items()):  # keys of their own, as above
        drawn = jax.random.normal(jax.random.fold_in(key, number), shape, dtype=jnp.float32)
        layers[name] = jnp.asarray(jnp.float32(SPREAD) * drawn)
    params: Params = {"embedding": normal(c.vocab, D), "norm": ones(D), "layers": layers}
    # drawn in any case, so that the other weights do not depend on the options
    position, head = normal(c.context, D), normal(c.vocab, D)
    params |= {"position": position} if c.position else {}
    return params | ({} if c.tied else {"head": head})


def loss(
    params: Params,
    tokens: Array,
    plans: Planned,
    config: Config,
    offset: Offset | None = None,
    linears: LinearPlans | None = None,
) -> Array:
    """Return the mean cross-entropy of the next token in nats.

    tokens (B, T + 1) are integers; plans are (layers, heads, ...), one plan, one of either for each
    layer, or None (plan = "jax").
    """
    return run(params, tokens, plans, config, offset=offset, linears=linears)[0]


def attention_inputs(
    params: Params, tokens: Array, plans: Planned, config: Config
) -> tuple[Array, Array, Array]:
    """Return q, k, v of every layer, (L, B, T, N, H) float32, as `attend` gets them."""
    seen = run(params, tokens, plans, config)[1]
    return seen.q, seen.k, seen.v


def run(
    params: Params,
    tokens: Array,
    plans: Planned,
    config: Config,
    taps: Array | None = None,
    offset: Offset | None = None,
    linears: LinearPlans | None = None,
) -> tuple[Array, Seen]:
    """Return (loss, what every layer's attention read).

    taps     (L, B, T, N, H), added to the attentions' outputs: the loss's derivative by them, at
             zero, is dO
    offset   an error of the output that delta reads
             where it reads the output
    linears  events of the linear layers; None for none

    What is not used of the second result costs nothing under jit.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = embed(params["embedding"], inputs, config.vocab)
    if config.position:
        x = x + params["position"][: x.shape[1]]

    def layer(plans: Own, x: Array, own: tuple[Any, ...]) -> tuple[Array, Seen]:
        w, table, tap, number, events = own
        heads = HeadPlans(plans.like, table) if isinstance(plans, HeadPlans) else plans
        wrong = None
        if offset is not None and plans is not None and offsets.readable(like_of(plans)):
            wrong = partial(offsets.error, offset, number)
        x, seen = _attention(x, w, heads, config, events, tap, wrong)
        read = normed(x, w["norm2"], events, Matrix.FC1, norm_of(config))
        return x + _mlp(read, w, config, events), seen

    numbers = None if offset is None else jnp.arange(config.layers)
    each, parts = (params["layers"], taps, numbers, linears), []
    for where, some in stretches(plans, config.layers):
        own = each
        if where != slice(0, config.layers):
            own = jax.tree.map(operator.itemgetter(where), each)
        table = jnp.asarray(some.table) if isinstance(some, HeadPlans) else None
        x, part = lax.scan(partial(layer, some), x, (own[0], table, *own[1:]))
        parts.append(part)
    seen = parts[0]
    if len(parts) > 1:
        seen = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    output = params["embedding"] if config.tied else params["head"]
    logits = linear(norm_of(config)(x, params["norm"]), output.T, config.matmul)
    return cross_entropy(logits, targets), seen


def read(
    params: Params,
    tokens: Array,
    plans: Planned,
    config: Config,
    offset: Offset | None = None,
    linears: LinearPlans | None = None,
) -> tuple[Array, Seen]:
    """Return dO (L, B, T, N, H) of every layer's attention, and what it read."""
    shape = config.layers, tokens.shape[0], tokens.shape[1] - 1, config.heads, config.head_width

    def tapped(taps: Array) -> tuple[Array, Seen]:
        return run(params, tokens, plans, config, taps, offset, linears)

    zeros = jnp.zeros(shape, params["embedding"].dtype)
    found: tuple[Array, Seen] = jax.grad(tapped, has_aux=True)(zeros)
    return found


def _attention(
    x: Array,
    w: Params,
    plans: Own,
    config: Config,
    events: LinearPlans | None,
    tap: Array | None,
    wrong: Wrong | None = None,
) -> tuple[Array, Seen]:
    read = normed(x, w["norm1"], events, Matrix.QKV, norm_of(config))
    qkv = product(read, w["qkv"].reshape(config.width, -1), config.matmul, events, Matrix.QKV)
    q, k, v = (
        qkv.reshape(*x.shape[:2], 3, config.heads, config.head_width)[:, :, i] for i in range(3)
    )
    if config.qk_norm:
        q, k = rms_norm(q, w["norm_q"]), rms_norm(k, w["norm_k"])
    if config.llama:
        q, k = rotated(q), rotated(k)
    out = attended(q, k, v, plans, config, None if wrong is None else wrong(q, k, v))
    out = out if tap is None else out + tap
    if config.gated:
        gate = linear(read, w["gate"].reshape(config.width, -1), config.matmul)
        out = out * jax.nn.sigmoid(gate.reshape(out.shape))
    rows, proj = out.reshape(x.shape), w["proj"].reshape(config.width, config.width)
    y = product(rows, proj, config.matmul, events, Matrix.PROJ)
    return x + y, Seen(read, q, k, v)


def attended(
    q: Array, k: Array, v: Array, plans: Own, config: Config, delta_error: Array | None = None
) -> Array:
    """Return the causal attention of one layer.

    It is computed by its heads' plans, by one plan (in the config's fused kernels, else on the
    engine that `attend` chooses), or, without any, by JAX's own attention (Config.plan = "jax").
    """
    if plans is not None:
        options: dict[str, Any] = {"plan": plans, "is_causal": True, "delta_error": delta_error}
        options |= {"block_q": config.tile, "block_k": config.tile}
        fused = isinstance(plans, Plan) and config.engine == PALLAS
        out: Array = attend(q, k, v, **options, engine="pallas" if fused else None)
        return out
    if config.plan != JAX:
        raise ValueError(f"plans: None, must be given for plan={config.plan}")
    own = partial(jax.nn.dot_product_attention, is_causal=True)
    if config.engine != CUDNN:
        return own(q, k, v)
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    return own(q, k, v, implementation="cudnn").astype(jnp.float32)


def _mlp(x: Array, w: Params, config: Config, events: LinearPlans | None) -> Array:
    h = product(x, w["up"], config.matmul, events, Matrix.FC1)
    if config.llama:
        inner = jax.nn.silu(linear(x, w["inner"], config.matmul)) * h
        return linear(inner, w["down"], config.matmul)
    inner = passed_phi(lambda h: jax.nn.gelu(h, approximate=False), h, events)
    return product(inner, w["down"], config.matmul, events, Matrix.FC2)


LAYER_NORM, RMS_NORM = 1e-5, 1e-6  # added to the variance


def product(x: Array, w: Array, kind: str, events: LinearPlans | None, matrix: Matrix) -> Array:
    """Return x (..., in) times w (in, out); blocks of X_W and G_W run over all rows of x."""
    if events is None:
        return linear(x, w, kind)
    rows = x.reshape(-1, x.shape[-1])
    y = mx.linear(events.how, rows, w, _rows(events, matrix))
    y = y if events.taps is None else watched(y, rows, events.taps[matrix])
    return y.reshape(*x.shape[:-1], y.shape[-1])


Norm = Callable[[Array, Array], Array]


def normed(x: Array, scale: Array, events: LinearPlans | None, matrix: Matrix, norm: Norm) -> Array:
    """Return the norm of x before a matrix; a LayerNorm has the events GAMMA, LN and DLN."""
    if events is None:
        return norm(x, scale)
    rows, how = _rows(events, matrix), events.how
    x = mx.passed(how, None, Site.DLN, x, rows)
    y = layer_norm(x, mx.passed(how, Site.GAMMA, None, scale, rows))
    return mx.passed(how, Site.LN, None, y, rows)


def passed_phi(phi: Callable[[Array], Array], h: Array, events: LinearPlans | None) -> Array:
    """Return phi(h), with the events PHI and DPHI."""
    if events is None:
        return phi(h)
    rows, how = _rows(events, Matrix.FC1), events.how
    return mx.passed(how, Site.PHI, None, phi(mx.passed(how, None, Site.DPHI, h, rows)), rows)


def _rows(events: LinearPlans, matrix: Matrix) -> Array:
    rows: Array = events.table[MATRICES.index(matrix)]
    return rows


@jax.custom_vjp
def watched(y: Array, x: Array, taps: Any) -> Array:
    """Return y; its gradient by taps, zeros like x and y, is what the backward reads, (x, dy)."""
    return y


watched.defvjp(lambda y, x, taps: (y, x), lambda x, g: (g, jnp.zeros_like(x), (x, g)))


def norm_of(config: Config) -> Norm:
    """Return the norm of the layers and of the end."""
    return rms_norm if config.llama else layer_norm


def rotated(x: Array) -> Array:
    """Return x (B, T, N, H) with rotary positions, as in Llama.

    Features i and i + H / 2 turn by 10,000^(-2 i / H) for each token.
    """
    half = x.shape[-1] // 2
    rates = jnp.asarray(1e4, x.dtype) ** -(
        jnp.arange(half, dtype=x.dtype) / jnp.asarray(half, x.dtype)
    )
    angles = (jnp.arange(x.shape[1], dtype=x.dtype)[:, None] * rates)[:, None]
    cos, sin, a, b = jnp.cos(angles), jnp.sin(angles), x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def layer_norm(x: Array, scale: Array) -> Array:
    """Return (x - mean) / sqrt(var + 1e-5) times the scale, over the last axis."""
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered * centered).mean(-1, keepdims=True)
    return centered * lax.rsqrt(variance + jnp.asarray(LAYER_NORM, x.dtype)) * scale


def rms_norm(x: Array, scale: Array) -> Array:
    """Return x / sqrt(mean x^2 + 1e-6) times the scale, over the last axis."""
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + jnp.asarray(RMS_NORM, x.dtype)) * scale
