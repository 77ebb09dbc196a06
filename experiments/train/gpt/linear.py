"""Linear layers and the embedding, with backwards of their own.

They define what rounds where, and leave the order of nothing to chance. matmul="bf16" is the
paper's "BF16 forward, FP32 backward" (arXiv 2510.04212): the forward rounds both operands to BF16
and adds the exact products in FP32; the backward multiplies the same rounded operands with the FP32
gradient, in FP32. matmul="fp16" is the same with FP16. matmul="autocast" rounds as PyTorch's
autocast to BF16 does: the result, the gradient that comes in and both gradients too, so that every
product has BF16 factors, which a GPU's tensor cores take. Sums are in FP32, in the device's order.

The roundings of changed linear layers are data, `LinearPlans`, beside the attention's `HeadPlans`.
A run without such a change has no table and no events in its executables. Before the first change
the events round as `Config.matmul` says, so that mx= and formats change what is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.emu.roundings.modes import BINARY32, rounding
from roundscope.experiments.train import mx
from roundscope.experiments.train.config import AUTOCAST, Config
from roundscope.experiments.train.gpt.interventions import BLOCK, MATRICES, changes_of, layers_of
from roundscope.experiments.train.mx import (
    GROUPS,
    Formats,
    How,
    Kept,
    Site,
    as_formats,
    put,
    put_written,
    reseeded,
)
from roundscope.tools.errors import bad

BITS = {"bf16": (8, 7), "fp16": (5, 10)}  # of exponent and significand
FULL = lax.Precision.HIGHEST  # or a GPU drops bits of FP32 operands (TF32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x: Array, w: Array, kind: str) -> Array:
    """Return x (..., K) times w (K, N), float32; kind is Config.matmul."""
    return _forward(x, w, kind)[0]


def _forward(x: Array, w: Array, kind: str) -> tuple[Array, tuple[Array, Array]]:
    if kind == AUTOCAST:
        x, w = rounded(x).astype(jnp.bfloat16), rounded(w).astype(jnp.bfloat16)
        return _of_bf16(x, w), (x, w)
    if kind in BITS:
        x, w = rounded(x, kind), rounded(w, kind)
        # numbers of both formats are TF32 numbers: nothing is lost on a GPU, whose default for FP32
        # operands is TF32
        return jnp.matmul(x, w, precision=lax.Precision.DEFAULT), (x, w)
    return jnp.matmul(x, w, precision=FULL), (x, w)


def _backward(kind: str, operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = operands
    product: Callable[[Array, Array], Array] = partial(jnp.matmul, precision=FULL)
    if kind == AUTOCAST:
        g, product = rounded(g).astype(jnp.bfloat16), _of_bf16
    rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    return product(g, w.T), product(rows[0].T, rows[1])


linear.defvjp(_forward, _backward)


def _of_bf16(a: Array, b: Array) -> Array:
    """Return a b of BF16 numbers, added up in FP32 and rounded to BF16, as float32."""
    return rounded(jnp.matmul(a, b, preferred_element_type=jnp.float32))


def rounded(x: Array, kind: str = "bf16") -> Array:
    """Return x as BF16 or FP16, with infinities; unlike an `astype`, XLA keeps this."""
    exponent, mantissa = BITS[kind]
    return lax.reduce_precision(x, exponent_bits=exponent, mantissa_bits=mantissa)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def embed(table: Array, tokens: Array, vocab: int) -> Array:
    """Return rows of the table (V, D); the gradient is a product, as a scatter has any order."""
    return table[tokens]


def _embed_backward(vocab: int, tokens: Array, g: Array) -> tuple[Array, Any]:
    hot = jax.nn.one_hot(tokens.reshape(-1), vocab, dtype=g.dtype)
    return jnp.matmul(hot.T, g.reshape(-1, g.shape[-1]), precision=FULL), None


embed.defvjp(lambda table, tokens, vocab: (table[tokens], tokens), _embed_backward)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Return the mean of log sum exp - the target's logit, of logits (..., V) in FP32."""
    hit = jnp.arange(logits.shape[-1], dtype=targets.dtype) == targets[..., None]
    chosen = jnp.where(hit, logits, jnp.zeros((), logits.dtype)).sum(-1)
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LinearPlans:
    """The formats of all linear layers as data, a pytree.

    how    static;  table: (layers, matrices, events, FIELDS) int32, may be mapped
    taps   None, or zeros whose gradient is what the products read (`layers.watched`): matrix ->
           x (layers, rows, in), g (layers, rows, out)
    """

    how: How = field(metadata={"static": True})
    table: Any
    taps: Any = None


def formats_of(config: Config, texts: Sequence[str] = ()) -> Formats | None:
    """Return the formats of every layer and matrix, by config.changes, then texts.

    None if no change is one of linear layers. Raises UsageError for a layer that does not exist,
    and for a width or context that blocks do not divide.
    """
    changes = [
        change
        for text in (*config.changes, *texts)
        for change in changes_of(text)
        if change.matrices is not None
    ]
    if not changes:
        return None
    if config.matmul == AUTOCAST:
        other = f"'{changes[0].text}' changes what matmul=bf16 or fp32 rounds; give one of these"
        raise bad("matmul", config.matmul, other)
    for name in ("gated", "llama"):
        if getattr(config, name):
            alone = f"'{changes[0].text}' is an event of GPT-2's layers; leave {name} out"
            raise bad(name, getattr(config, name), alone)
    needed = f"'{changes[0].text}' needs a multiple of the block of {BLOCK} numbers"
    for name in ("width", "context"):
        if getattr(config, name) % BLOCK:
            raise bad(name, getattr(config, name), needed)
    formats = np.full((config.layers, len(MATRICES), len(Site)), BINARY32, dtype=object)
    if config.matmul != "fp32":
        operands = (*GROUPS["weights"], *GROUPS["activations"])
        put(formats, range(config.layers), range(len(MATRICES)), operands, rounding(config.matmul))
    for change in changes:
        matrices = [MATRICES.index(m) for m in change.matrices or ()]
        put_written(formats, layers_of(change, config), matrices, change.written)
    return Formats(formats=as_formats(formats))


def how_of(found: Sequence[Formats]) -> How:
    """Return what an executable needs that serves all of these formats."""
    return mx.how_of(BLOCK, found)


def by_arm(how: How, found: Sequence[Formats], seeds: Sequence[int]) -> LinearPlans:
    """Return the plans of arms, with a leading axis of arms; seeds: one for each arm."""
    return LinearPlans(how, np.stack([f.table(seed) for f, seed in zip(found, seeds, strict=True)]))


def linear_at(plans: LinearPlans | None, step: Any) -> LinearPlans | None:
    """Return the plans of one step: random bits are drawn from (seed, step, place)."""
    if plans is None or not plans.how.drawn:
        return plans
    return replace(plans, table=reseeded(jax.numpy.asarray(plans.table), jax.numpy.asarray(step)))


def described(found: Formats | None) -> list[dict[str, Any]]:
    """Return the different formats as words by event, and where each holds, as plain data."""
    where: dict[tuple[Kept, ...], list[list[Any]]] = {}
    for layer, row in enumerate(found.formats if found is not None else ()):
        for matrix, own in zip(MATRICES, row, strict=True):
            where.setdefault(own, []).append([layer, str(matrix)])
    return [
        {"formats": {str(s): str(f) for s, f in zip(Site, own, strict=True)}, "layers_matrices": at}
        for own, at in where.items()
    ]
