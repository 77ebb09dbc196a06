"""`attention_fn`: emulated attention in the signature in which flax calls attention."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax.nnx.nn import dtypes
from jax import Array

from roundscope.attention.alignment import Alignment, alignment_given
from roundscope.attention.api import attend
from roundscope.attention.arguments import block_given, causal_given, plan_given, scale_given
from roundscope.attention.grammar.text import plan_of
from roundscope.attention.plans.plan import Plan
from roundscope.emu.shown import shown

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
    share are those of the call. A bias, dropout and sown weights, which the emulation does not
    have, raise errors. `precision` and the like are left to the plan.

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
        _check_modelled(plan, bias, 0.0 if deterministic else dropout_rate, module, options)
        q, k, v = promote_dtype((query, key, value), dtype=dtype)
        lead = q.shape[:-3]
        out = attend(
            *(_four_axes(x) for x in (q, k, v)),
            plan=plan,
            block_q=block_q,
            block_k=block_k,
            scale=scale,
            is_causal=always or is_causal,
            alignment=alignment,
            mask=None if mask is None else _mask(mask, lead),
        )
        return jnp.asarray(out).astype(q.dtype).reshape(*lead, *out.shape[1:])

    return attention


def _check_modelled(
    plan: Plan, bias: Any, dropout: float, module: Any, options: dict[str, Any]
) -> None:
    """Raise ValueError for what the emulation does not have."""
    if bias is not None:
        raise ValueError(
            f"bias: shape {bias.shape}, must be None on plan {plan.name}: the emulation adds"
            " nothing to scores; give a mask of booleans, if that is what it is"
        )
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


def _four_axes(x: Array) -> Array:
    """Return (..., T, N, H) as (B, T, N, H)."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _mask(mask: Array, lead: tuple[int, ...]) -> Array:
    """Return a mask that broadcasts to (..., N, T, S), of any type, as bool (B or 1, N or 1, T, S).

    flax makes masks of floats, 0 where a query does not see a key.
    """
    seen = jnp.asarray(mask) != 0
    if seen.ndim < 4:
        return seen
    own = seen.shape[:-3]
    if math.prod(own) not in (1, math.prod(lead)):
        seen = jnp.broadcast_to(seen, (*lead, *seen.shape[-3:]))
    return _four_axes(seen)
