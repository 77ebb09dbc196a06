"""What a layer's file says of its call beside q, k, v: causality, mask, bias, window, softcap
and sinks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.attention.arguments import served_given
from roundscope.attention.inputs.alignment import visible_keys
from roundscope.attention.inputs.scales import OPERANDS
from roundscope.attention.plans.choices import Descales
from roundscope.attention.plans.named import fitting, note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.request import Request

USUAL = "fa2"  # the plan that is taken if none is asked for
BIASED = "sdpa-efficient"  # the same for layers with a bias


def plan_for(layers: Sequence[Layer], plan: str | None) -> str:
    """Return the plan's name: as asked, or FlashAttention-2, in FP16 if all layers are.

    In place of FlashAttention-2, which adds no bias, layers with one have memory-efficient
    attention, which SDPA runs for them.
    """
    usual = BIASED if any(layer.bias is not None for layer in layers) else USUAL
    names = {fitting(usual, layer.types) for layer in layers}
    return plan if plan is not None else names.pop() if len(names) == 1 else usual


def noted(layer: Layer, plan: Plan, *, is_asked: bool) -> Layer:
    """Return a layer with a note on how its types agree with the plan, which was asked or not.

    Raises UsageError where the layer's numbers contain scales that the plan has in its products.
    """
    scales = layer.scales or {}
    if plan.descales is Descales.PRODUCTS and any(name in scales for name in OPERANDS):
        repair = (
            "has the scales in its products (descales=products), but q, k and v are read times"
            " theirs; add --scales none for the stored numbers, or in trace --set descales=operands"
        )
        raise bad("--plan", plan.name, repair)
    note, fitted = note_on_types(plan, layer.types), fitting(USUAL, layer.types)
    if not is_asked and plan.name.startswith(BIASED):
        note = f"a bias is added to the scores, so the plan is {plan.name}, not {fitted}"
    elif note is None and not is_asked and fitted != USUAL:
        note = f"q, k and v are {', '.join(dict.fromkeys(layer.types))}, so the plan is {fitted}"
    return layer if note is None else replace(layer, notes=(*layer.notes, note))


def settled(request: Request, layer: Layer) -> Request:
    """Return the request for one layer: causal, windowed and bounded as its call was.

    What the request says of causality comes before what the file says; else a layer of which
    nothing is said is not causal.
    """
    causal = request.causal if request.causal is not None else bool(layer.is_causal)
    heads = layer.q.shape[2]

    def served(plan: Any) -> Any:
        try:
            return served_given(plan, layer.window, layer.softcap, layer.sinks, heads, layer.bias)
        except ValueError as error:
            if str(error).startswith("bias: "):
                told = f"layer {layer.name!r} has a {error}, or add --bias none to leave it out"
                raise UsageError(told) from None
            raise

    return replace(
        request,
        causal=causal,
        alignment=layer.alignment,
        plan=served(request.plan),
        against=served(request.against),
        beside=None if request.beside is None else served(request.beside),
    )


def options(layer: Layer, first: int = 0, end: int | None = None) -> dict[str, Any]:
    """Return the mask, the bias and the sinks of the query heads first to end, as `examine` takes
    them.
    """
    heads = slice(first, end)

    def own(x: np.ndarray | None) -> np.ndarray | None:
        return None if x is None else x[:, heads if x.shape[1] > 1 else slice(None)]

    return {
        "mask": own(layer.mask),
        "bias": own(layer.bias),
        "sinks": None if layer.sinks is None else layer.sinks[heads],
    }


def visible(layer: Layer, request: Request) -> np.ndarray | None:
    """Return the keys that queries see, (B or 1, N or 1, T, S); None if causality alone says it."""
    if layer.mask is None and layer.window is None:
        return None
    sees = visible_keys(
        layer.q.shape[1],
        layer.k.shape[1],
        is_causal=bool(request.causal),
        window=layer.window,
        alignment=request.alignment,
    )[None, None]
    return sees if layer.mask is None else sees & layer.mask
