"""`Call`: one call of attention in a PyTorch model, as handlers get it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from roundscope.attention.inputs.alignment import Alignment
from roundscope.attention.models.selection import Layer

Run: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
CHAIN = "_roundscope_handlers"  # the attribute of a module that holds its handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of attention in a model, before anything ran.

    Attributes:
        layer: The layer that calls.
        q: Queries (B, N, T, H), in the type in which the kernel gets them: autocast has been
            applied.
        k: Keys (B, G, S, H), where G divides N.
        v: Values (B, G, S, Hv).
        mask: None, or what broadcasts to (B, N, T, S): booleans, True where a query sees a key, or
            numbers that are added to the scores.
        is_causal: Whether query t sees only keys s <= t.
        alignment: Where queries stand in a causal or windowed call with other numbers of queries
            than of keys: "top-left", as SDPA has it, or "bottom-right", as FlashAttention's
            package since 2.1 has it.
        scale: The factor of the scores.
        dropout: The probability with which a weight is dropped, 0 for none.
        window: How many keys a query sees, its own included; None for all.
        softcap: The bound c of scores that become c tanh(score / c); None for none.
        sinks: One logit for each query head, (N,); None for none.
        implementation: "sdpa", or the name that the transformers library has for it.
        has_heads: Whether the model gave an axis of heads. Without one, as in (B N, T, H), N is 1,
            and heads of a model may be entries of the batch.
        is_fast_path_off: Whether PyTorch would have computed it in the fast path of
            `nn.MultiheadAttention`, which is off while attention is seen.
        run: The model's own attention of this call, with other q, k and v: the same mask,
            causality and scale, whatever the widths. It returns (B, N, T, Hv) and is
            differentiable.
    """

    layer: Layer
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float
    dropout: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    implementation: str = "sdpa"
    alignment: Alignment = "top-left"
    has_heads: bool = True
    is_fast_path_off: bool = False
    run: Run


Handler: TypeAlias = Callable[[Call], Tensor]
