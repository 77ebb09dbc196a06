"""What a layer's file says of its call beside q, k, v: causality, mask, window, softcap, sinks."""

from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.attention.alignment import visible_keys
from roundscope.attention.arguments import served_given
from roundscope.experiments.tensors.layers import Layer
from roundscope.experiments.trace.options import Request


def settled(request: Request, layer: Layer) -> Request:
    """Return the request for one layer: causal, windowed and bounded as its call was.

    What the request says of causality comes before what the file says; else a layer of which
    nothing is said is not causal.
    """
    causal = request.causal if request.causal is not None else bool(layer.is_causal)
    heads = layer.q.shape[2]

    def served(plan: Any) -> Any:
        return served_given(plan, layer.window, layer.softcap, layer.sinks, heads)

    return replace(
        request,
        causal=causal,
        alignment=layer.alignment,
        plan=served(request.plan),
        against=served(request.against),
        beside=None if request.beside is None else served(request.beside),
    )


def options(layer: Layer, first: int = 0, end: int | None = None) -> dict[str, Any]:
    """Return the mask and the sinks of the query heads first to end, as `examine` takes them."""
    heads, mask = slice(first, end), layer.mask
    return {
        "mask": None if mask is None else mask[:, heads if mask.shape[1] > 1 else slice(None)],
        "sinks": None if layer.sinks is None else layer.sinks[heads],
    }


def visible(layer: Layer, request: Request) -> np.ndarray | None:
    """Return which keys a query sees, (B or 1, N or 1, T, S), by mask, window and causality.

    None for a layer without mask and window, where causality alone says it.
    """
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
