"""Calls of attention in models of the transformers library that do not go through SDPA.

Its models look their attention up in a registry by the name in their config. While they are
intercepted, the config has another name, under which the registry holds a function that lets the
handlers of the module answer, and the registry of masks holds the masks of the implementation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

PREFIX = "roundscope:"
_routes: dict[int, tuple[Any, int]] = {}  # configs by id, and by how many interceptions
# what a call may be given that changes nothing
IGNORED = frozenset(
    (
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "num_items_in_batch",
        "sliding_window",
        "softcap",
        "s_aux",
        "is_causal",
        "head_mask",
    )
)


def routed(modules: Sequence[nn.Module], answered: Callable[..., Tensor]) -> Callable[[], None]:
    """Let the handlers of modules answer for an implementation other than SDPA.

    Args:
        modules: The modules that call attention; those of other libraries are left alone.
        answered: Takes the chain of handlers of a module and a `Call`, and returns the output.

    Returns:
        A function that restores the configs.

    Raises:
        ValueError: An implementation whose calls cannot be seen.
    """
    configs = {id(c): c for c in map(_config_of, modules) if c is not None}
    for module in modules:
        _check(module)
    for config in configs.values():
        _route(config, answered)

    def undo() -> None:
        for config in configs.values():
            _unroute(config)

    return undo


class _Routed(str):
    """The name of a function that lets handlers answer; a copy of it is the user's own name."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.removeprefix(PREFIX),)


def _route(config: Any, answered: Callable[..., Tensor]) -> None:
    """Give a config the name of the function that lets handlers answer, and count how often."""
    name = _own_name(config)
    if name is not None and name != "sdpa":
        config._attn_implementation_internal = _Routed(_registered(name, answered))
    _, count = _routes.get(id(config), (config, 0))
    _routes[id(config)] = config, count + 1


def _unroute(config: Any) -> None:
    """Give a config its own name back, if nobody else needs the other one."""
    _, count = _routes.pop(id(config))
    if count > 1:
        _routes[id(config)] = config, count - 1
    else:
        config._attn_implementation_internal = _own_name(config)


def _own_name(config: Any) -> str | None:
    """Return the name of an implementation as the user gave it."""
    name: str | None = config._attn_implementation
    return None if name is None else name.removeprefix(PREFIX)


def _config_of(module: nn.Module) -> Any:
    config = getattr(module, "config", None)
    return config if hasattr(config, "_attn_implementation_internal") else None


def _check(module: nn.Module) -> None:
    config = _config_of(module)
    if config is None:
        return
    name = _own_name(config)
    if name == "flex_attention":
        raise ValueError(
            "model: its attention is flex_attention, whose mask is a program; call"
            " model.set_attn_implementation('sdpa') first"
        )
    if name == "eager" and getattr(module, "reorder_and_upcast_attn", False):
        raise ValueError(
            "model: reorder_and_upcast_attn has a function of its own in eager attention; set it to"
            " False, or call model.set_attn_implementation('sdpa')"
        )


def _registered(name: str, answered: Callable[..., Tensor]) -> str:
    """Register the function that lets handlers answer for an implementation; return its name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    own = PREFIX + name

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> tuple[Tensor, None]:
        function = _function(name, module)
        chain = module.__dict__.get("_roundscope_handlers")
        if chain is None:  # a module that is not intercepted, which shares the config
            out: tuple[Tensor, None] = function(
                module, query, key, value, attention_mask, **options
            )
            return out
        call = _call(name, function, chain, module, query, key, value, attention_mask, options)
        return answered(chain, call).transpose(1, 2), None

    AttentionInterface.register(own, attention)
    AttentionMaskInterface.register(own, ALL_MASK_ATTENTION_FUNCTIONS[name])
    return own


def _function(name: str, module: nn.Module) -> Callable[..., Any]:
    """Return the implementation that a module would have called."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
    eager = (getattr(file, "eager_attention_forward", None) for file in files)
    function: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get(
        name, next(filter(None, eager), None)
    )
    return function


def _call(
    name: str,
    function: Callable[..., Any],
    chain: Any,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    options: dict[str, Any],
) -> Any:
    """Return the call that the arguments of an implementation make."""
    from roundscope.attention.torch.calls import Call

    scale = options.pop("scaling", None)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dropout = options.pop("dropout", 0.0)
    unknown = [n for n, x in options.items() if x is not None and n not in IGNORED]
    if unknown:
        raise ValueError(
            f"layer {chain.layer.number} ({chain.layer.name}): its attention is given"
            f" {', '.join(unknown)}, which cannot be seen through; call"
            " model.set_attn_implementation('sdpa') first"
        )
    kind = q.device.type
    is_autocast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=is_autocast):
            out = function(module, q, k, v, mask, scaling=scale, dropout=dropout, **options)[0]
        result: Tensor = out.transpose(1, 2)
        return result

    is_flash = name.startswith("flash_attention")
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return Call(
        layer=chain.layer,
        q=q,
        k=k,
        v=v,
        mask=mask[:, None, None, :].bool() if is_flash and mask is not None else mask,
        # eager attention knows no other causality than that in its mask
        is_causal=bool(causal) and is_flash and q.shape[2] > 1,
        scale=scale,
        dropout=dropout,
        window=options.get("sliding_window") if is_flash else None,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        implementation=name,
        alignment="bottom-right" if is_flash else "top-left",
        run=run,
    )
