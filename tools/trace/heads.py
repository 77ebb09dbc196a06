"""Some query heads of a layer, as a call of their own: `roundscope trace --heads`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.attention.grammar.ranges import numbers
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.tensors.layers import ROLES, Layer, not_finite


def heads_given(text: str | None) -> tuple[int, ...] | None:
    """Return the heads of a text such as 3, 0:4 or 0,5, in rising order; None for all.

    Raises UsageError naming the option, the text and the repair.
    """
    if text is None:
        return None
    try:
        return tuple(sorted(set(numbers(text))))
    except ValueError as error:
        raise UsageError(f"--heads {error}") from None


def of_heads(layer: Layer, heads: Sequence[int] | None) -> Layer:
    """Return a layer of some of its query heads and their key heads; a note says which.

    dK and dV of a key head are sums over the query heads that share it, so these are taken whole.

    Raises UsageError for heads that there are not, and for a part of those that share a key head.
    """
    if heads is None:
        return layer
    count, group = layer.q.shape[2], layer.q.shape[2] // layer.k.shape[2]
    if heads[-1] >= count:
        raise bad("--heads", heads[-1], f"layer {layer.name} has {count}, numbered from 0")
    keys = sorted({n // group for n in heads})
    whole = [n for g in keys for n in range(g * group, (g + 1) * group)]
    if whole != list(heads):
        repair = f"{group} query heads share a key head; give {','.join(map(str, whole))}"
        raise bad("--heads", ",".join(map(str, heads)), repair)
    arrays: dict[str, Any] = {
        role: np.ascontiguousarray(x[:, :, keys if role in "kv" else whole])
        for role in ROLES
        if (x := getattr(layer, role)) is not None
    }
    sinks = None if layer.sinks is None else layer.sinks[whole]
    mask, bias = (
        x if x is None or x.shape[1] == 1 else x[:, whole] for x in (layer.mask, layer.bias)
    )
    lost = sum(not_finite(arrays, sinks, bias).values())
    scales = layer.scales
    if scales is not None:
        scales = {name: x[:, keys] if x.ndim == 2 else x for name, x in scales.items()}
    own = ", ".join(map(str, whole))
    notes = (*layer.notes, f"heads {own} of {count}; below they are numbered from 0")
    made: dict[str, Any] = {**arrays, "mask": mask, "bias": bias, "sinks": sinks, "scales": scales}
    return replace(layer, **made, nan_count=lost, notes=notes)
