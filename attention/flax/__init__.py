"""Attention in flax models: choose the arithmetic of layers, and tap them.

`attention_fn` is emulated attention in the signature that flax calls; `use` gives it to the layers
of a model, and `tap` lets `roundscope.jax.capture` and `roundscope.jax.watch` hear them.

A layer is a module of the model with an attribute `attention_fn`, as `nnx.MultiHeadAttention` has.
This attribute is part of a model's structure (its `GraphDef`), so that `nnx.jit` compiles a
function again for a model whose attention was replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array

from roundscope.attention.api import attend
from roundscope.attention.arguments import block_given, causal_given, plan_given, scale_given
from roundscope.attention.grammar.text import plan_of
from roundscope.attention.inputs.alignment import Alignment, alignment_given
from roundscope.attention.jax.tapping import four_axes
from roundscope.attention.jax.tapping import tap as tapped
from roundscope.attention.models.selection import Layer, Removable, chosen
from roundscope.attention.plans.plan import Plan
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown

__all__ = ["Replacement", "attention_fn", "tap", "use"]


AttentionFn = Callable[..., Array]
# options of linen and nnx that choose how attention is computed, which is the plan's choice here
LEFT_TO_THE_PLAN = (
    "broadcast_dropout",
    "dropout_rng",
    "precision",
    "force_fp32_for_softmax",
    "einsum_dot_general",
    "qk_attn_weights_einsum",
    "attn_weights_value_einsum",
)


@known_arguments
def attention_fn(
    plan: Plan | str,
    *,
    block_q: int = 128,
    block_k: int = 128,
    is_causal: bool = False,
    scale: float | None = None,
    alignment: Alignment | None = None,
) -> AttentionFn:
    """Return attention on a plan, as the `attention_fn` of a module of flax.

    It fits `flax.nnx.MultiHeadAttention` and `flax.linen.MultiHeadDotProductAttention`. A call
    returns what `attend` returns, bit for bit, in the type of the query, and its derivative is the
    emulated backward. Where `attend` returns float32 for inputs of 16 bits, as under "exact", that
    is one more rounding, to nearest even. Masks, causality and key heads that several query heads
    share are those of the call; a bias is taken by plans that add one (`roundscope.attend`).
    Dropout and sown weights, which the emulation does not have, raise errors. `precision` and the
    like are left to the plan.

    Args:
        plan: A `Plan`, the name of a preset, or a text such as "fa2-bf16; O=bf16".
        block_q: Query rows of a tile.
        block_k: Keys of a tile.
        is_causal: Whether every call is causal, also one that does not say so.
        scale: The factor of the scores, 1 / sqrt(H) by default.
        alignment: Where queries stand in causal calls with other numbers of queries than of keys:
            "top-left", as `jax.nn.dot_product_attention` has it, which None (default) is too, or
            "bottom-right". See `roundscope.attend`.

    Returns:
        A function of query (..., T, N, H), key (..., S, G, H) and value (..., S, G, Hv) that
        returns (..., T, N, Hv).

    Raises:
        TypeError: An argument is of another type.
        ValueError: No such preset, or a text with an unknown word.

    Example:
        >>> import jax
        >>> from flax import nnx
        >>> from roundscope.flax import attention_fn
        >>> layer = nnx.MultiHeadAttention(
        ...     num_heads=2, in_features=16, decode=False, rngs=nnx.Rngs(0),
        ...     attention_fn=attention_fn("fa2-bf16", is_causal=True),
        ... )
        >>> layer(jax.numpy.ones((1, 4, 16))).shape
        (1, 4, 16)
    """
    plan = plan_of(plan) if isinstance(plan, str) else plan_given(plan)
    always, alignment = causal_given(is_causal), alignment_given(alignment)
    block_q, block_k = block_given("block_q", block_q), block_given("block_k", block_k)

    if scale is not None:
        scale_given(scale, 1, is_wide=False)

    def attention(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        *,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        module: Any = None,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        is_causal: bool = False,
        scale: float | None = scale,
        **options: Any,
    ) -> Array:
        _check_modelled(plan, 0.0 if deterministic else dropout_rate, module, options)
        q, k, v = promote_dtype((query, key, value), dtype=dtype)
        lead = q.shape[:-3]
        out = attend(
            *(four_axes(x) for x in (q, k, v)),
            plan=plan,
            block_q=block_q,
            block_k=block_k,
            scale=scale,
            is_causal=always or is_causal,
            alignment=alignment,
            # flax makes masks of floats, 0 where a query does not see a key
            mask=None if mask is None else _of_scores(jnp.asarray(mask) != 0, lead),
            bias=None if bias is None else _of_scores(jnp.asarray(bias), lead),
        )
        return jnp.asarray(out).astype(q.dtype).reshape(*lead, *out.shape[1:])

    return attention


def _check_modelled(plan: Plan, dropout: float, module: Any, options: dict[str, Any]) -> None:
    """Raise ValueError for what the emulation does not have."""
    if dropout:
        raise ValueError(
            f"dropout_rate={dropout}: must be 0 on plan {plan.name}: the emulation drops no"
            " weights; set dropout_rate=0.0 or deterministic=True"
        )
    if module is not None:
        raise ValueError(
            f"module={type(module).__name__}: must be None on plan {plan.name}: tiled attention has"
            " no matrix of weights to sow; set sow_weights=False"
        )
    for name, value in options.items():
        if name not in LEFT_TO_THE_PLAN and value is not None:
            raise ValueError(
                f"{name}={shown(value)}: an option that attention on plan {plan.name} does"
                " not have;"
                " leave it out"
            )


def _of_scores(x: Array, lead: tuple[int, ...]) -> Array:
    """Return what broadcasts to (..., N, T, S) as (B or 1, N or 1, T, S)."""
    if x.ndim < 4:
        return x
    if math.prod(x.shape[:-3]) not in (1, math.prod(lead)):
        x = jnp.broadcast_to(x, (*lead, *x.shape[-3:]))
    return four_axes(x)


class Replacement(Removable):
    """The attention that was put in the place of a model's own, until `remove` is called.

    It is also a context manager that removes it at its end; `layers` are those that were replaced.
    """


@known_arguments
def use(
    model: nnx.Module,
    plans: Mapping[str, Plan | str | AttentionFn] | Plan | str,
    *,
    block_q: int = 128,
    block_k: int = 128,
) -> Replacement:
    """Run the attention of a model's layers on chosen plans, forward and backward.

    Args:
        model: A model with modules that have an attribute `attention_fn`, such as
            `nnx.MultiHeadAttention`. It is changed in place.
        plans: Which layers -> a `Plan`, the name of a preset, a text such as "fa2-bf16; O=bf16", or
            an attention function, such as `corrected(flax.nnx.dot_product_attention)`. Layers are
            named as in `attention.models.selection.chosen`: "*", "layers.0-3", or a pattern of
            paths. The first name that fits a layer counts; a layer that none fits keeps its own
            attention. A plan alone is that of all layers.
        block_q: Query rows of a tile.
        block_k: Keys of a tile.

    Returns:
        A `Replacement`, whose `remove` gives the layers their own attention back.

    Raises:
        TypeError: `model` is not a module of nnx, or a plan is of another type.
        ValueError: The model has no such layers; the message lists those it has.

    Example:
        >>> import jax
        >>> from flax import nnx
        >>> from roundscope.flax import use
        >>> model = nnx.MultiHeadAttention(2, 16, decode=False, rngs=nnx.Rngs(0))
        >>> x = jax.numpy.ones((1, 4, 16))
        >>> with use(model, "fa2-bf16") as used:
        ...     out = model(x)
        >>> [layer.number for layer in used.layers], out.shape
        ([0], (1, 4, 16))
    """
    modules = attention_layers(model)
    known, by_name = list(modules), plans if isinstance(plans, Mapping) else {"*": plans}
    if not by_name:
        raise ValueError("plans={}: give a plan, or a dictionary such as {'*': 'fa2-bf16'}")
    found: dict[Layer, AttentionFn] = {}
    for name, plan in by_name.items():
        own: AttentionFn = (
            plan
            if callable(plan) and not isinstance(plan, Plan)
            else attention_fn(plan, block_q=block_q, block_k=block_k)
        )
        for layer in chosen(name, known, "a key of plans"):
            found.setdefault(layer, own)
    return _replaced(modules, {layer: found[layer] for layer in known if layer in found})


@known_arguments
def tap(model: nnx.Module, *, is_causal: bool | None = None) -> Replacement:
    """Let `roundscope.jax.capture` and `roundscope.jax.watch` hear the attention of a model.

    The layers keep their attention, with every bit; see `roundscope.jax.tap`. Tap a model after
    `use`, if both are wanted. While something listens, dropout has to be off and no weights sown.

    Args:
        model: A model with modules that have an attribute `attention_fn`. It is changed in place.
        is_causal: Whether attention is causal, for functions without an argument `is_causal`.

    Returns:
        A `Replacement`, whose `remove` takes the taps away.

    Raises:
        TypeError: `model` is not a module of nnx.
        ValueError: The model has no such layers.

    Example:
        >>> import tempfile, jax
        >>> from flax import nnx
        >>> from roundscope.flax import tap
        >>> from roundscope.jax import capture
        >>> model = nnx.MultiHeadAttention(2, 16, decode=False, rngs=nnx.Rngs(0))
        >>> tapped = tap(model)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with capture(f"{folder}/qkv.safetensors") as calls:
        ...         out = model(jax.numpy.ones((1, 4, 16)), is_causal=True)
        >>> calls[0].q.shape, calls[0].is_causal
        ((1, 2, 4, 8), True)
    """
    modules = attention_layers(model)
    return _replaced(
        modules,
        {
            layer: tapped(module.attention_fn, layer.name, number=layer.number, is_causal=is_causal)
            for layer, module in modules.items()
        },
    )


def attention_layers(model: nnx.Module) -> dict[Layer, Any]:
    """Return the modules of a model that have an `attention_fn`, in order of their paths.

    Args:
        model: A module of nnx.

    Returns:
        Layer -> module. Layers are numbered from 0; the path of a module in a list has its number,
        such as "layers.0.attention". Parts of a path that are numbers are ordered as numbers.

    Raises:
        TypeError: `model` is not a module of nnx.
        ValueError: It has no such module.

    Example:
        >>> from flax import nnx
        >>> from roundscope.attention.flax import attention_layers
        >>> model = nnx.Sequential(nnx.MultiHeadAttention(2, 16, rngs=nnx.Rngs(0)))
        >>> list(attention_layers(model))
        [Layer(name='layers.0', number=0)]
    """
    if not isinstance(model, nnx.Module):
        raise TypeError(
            f"model: {type(model).__name__}, must be a flax.nnx.Module; a module of linen takes"
            " attention_fn=roundscope.flax.attention_fn(plan) as an argument"
        )
    found = {
        path: module for path, module in nnx.iter_modules(model) if hasattr(module, "attention_fn")
    }
    if not found:
        raise ValueError(
            f"model: no module of this {type(model).__name__} has an attribute `attention_fn`, as"
            " nnx.MultiHeadAttention has; tap or replace the attention function in its code"
        )
    paths = sorted(found, key=lambda path: [(isinstance(x, str), x) for x in path])
    return {
        Layer(name=".".join(map(str, path)) or "attention", number=n): found[path]
        for n, path in enumerate(paths)
    }


def _replaced(
    modules: Mapping[Layer, Any], functions: Mapping[Layer, Callable[..., Any]]
) -> Replacement:
    undo = [
        partial(setattr, modules[x], "attention_fn", modules[x].attention_fn) for x in functions
    ]
    for layer, function in functions.items():
        modules[layer].attention_fn = function
    return Replacement(list(functions), undo)
