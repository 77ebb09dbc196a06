"""`use` and `tap`: the attention of the layers of a flax model, found by their paths and replaced.

A layer is a module of the model with an attribute `attention_fn`, as `nnx.MultiHeadAttention` has.
This attribute is part of a model's structure (its `GraphDef`), so that `nnx.jit` compiles a
function again for a model whose attention was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from roundscope.attention.flax.plans import AttentionFn, attention_fn
from roundscope.attention.jax import tap as tapped
from roundscope.attention.models.removable import Removable
from roundscope.attention.models.selection import Layer, chosen
from roundscope.attention.plans.plan import Plan


class Replacement(Removable):
    """The attention that was put in the place of a model's own, until `remove` is called.

    It is also a context manager that removes it at its end.

    Attributes:
        layers: The layers whose attention was replaced.
    """

    def __init__(self, before: Sequence[tuple[Layer, Any, AttentionFn]]) -> None:
        self.layers = tuple(layer for layer, _, _ in before)
        self._before = list(before)

    def remove(self) -> None:
        """Give the layers the attention back that they had. A second call does nothing."""
        while self._before:
            _, module, own = self._before.pop()
            module.attention_fn = own


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
        for layer in chosen(name, known):
            found.setdefault(layer, own)
    return _replaced(modules, {layer: found[layer] for layer in known if layer in found})


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
        >>> from roundscope.attention.flax.layers import attention_layers
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
    """Give modules other attention functions."""
    before = [(layer, modules[layer], modules[layer].attention_fn) for layer in functions]
    for layer, function in functions.items():
        modules[layer].attention_fn = function
    return Replacement(before)
