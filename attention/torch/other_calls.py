"""Calls of attention that do not go through SDPA: of `nn.MultiheadAttention`, of transformers.

`F.multi_head_attention_forward` gives itself to a `TorchFunctionMode` as a whole, and the mode is
off inside. Here its code runs with a `has_torch_function` that says no, so that the mode stays on
and is given the operations inside, SDPA among them. Nothing of PyTorch is replaced meanwhile: other
threads and compiled functions see no difference. With `need_weights=True`, which is the default of
`nn.MultiheadAttention`, it does not call SDPA: it multiplies out scores and weights. `weighted`
makes these operations the call's own attention.

Models of the transformers library look their attention up in a registry by the name in their
config. While they are intercepted, the config has another name, under which the registry holds a
function that lets the handlers of the module answer, and the registry of masks holds the masks of
the implementation.
"""

import dis
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from roundscope.attention.torch.call import CHAIN, Call

WITH_WEIGHTS = "nn.MultiheadAttention with need_weights"  # Call.implementation


def _opened(function: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return a function of PyTorch that does not give itself to modes as a whole."""
    known = function.__globals__ | {"has_torch_function": lambda tensors: False}
    own = FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    own.__kwdefaults__ = function.__kwdefaults__
    return own


opened = _opened(F.multi_head_attention_forward)


def traceable(function: Any) -> Any:
    """Return a function as torch.compile traces it in a mode, where `Tensor.unflatten` fails."""
    return torch.unflatten if function is Tensor.unflatten else function


def weighted(
    call_of: Callable[..., Call], answer: Callable[[Call], Tensor], *args: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return what `F.multi_head_attention_forward` does with need_weights=True.

    The weights are those of the call's own attention, also where handlers answer otherwise.
    `call_of` makes a `Call` of the arguments of SDPA, and `answer` lets the handlers answer it.
    """
    is_causal = options.pop("is_causal", False) and options.get("attn_mask") is None
    is_averaged = options.pop("average_attn_weights", True)
    mode = _Weighted(call_of, answer)
    with mode:
        out, _ = opened(*args, **options | {"need_weights": False, "is_causal": is_causal})
    (weights,) = mode.weights
    weights = weights.mean(dim=1) if is_averaged else weights
    return out, weights if args[0].dim() == 3 else weights.squeeze(0)


class _Weighted(TorchFunctionMode):
    """Answers SDPA by an attention that multiplies out its weights, and keeps them."""

    def __init__(self, call_of: Callable[..., Call], answer: Callable[[Call], Tensor]) -> None:
        super().__init__()
        self.call_of, self.answer = call_of, answer
        self.weights: list[Tensor] = []  # (B, N, T, S), one

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return traceable(func)(*args, **(kwargs or {}))
        call, weights = _multiplied(self.call_of(*args, **(kwargs or {})), self.weights)
        out = self.answer(call)
        if not self.weights:
            self.weights.append(weights(call.q, call.k))
        return out


def _multiplied(call: Call, kept: list[Tensor]) -> tuple[Call, Callable[..., Tensor]]:
    """Return a call whose own attention multiplies out its weights, and what computes those.

    kept: gets the weights of the first run whose gradients reach q and k of the call
    """
    kind = call.q.device.type
    is_autocast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    scale = math.sqrt(1.0 / call.q.shape[-1])
    mask = None if call.mask is None else call.mask.flatten(0, 1)  # a view, (1 or BN, 1 or T, S)
    learns = torch.is_grad_enabled() and (call.q.requires_grad or call.k.requires_grad)

    def weights(q: Tensor, k: Tensor) -> Tensor:
        scaled, turned = q.flatten(0, 1) * scale, k.flatten(0, 1).transpose(-2, -1)
        if mask is None:
            scores = torch.bmm(scaled, turned)
        else:
            scores = torch.baddbmm(mask, scaled, turned)
        return F.softmax(scores, dim=-1).view(*q.shape[:2], *scores.shape[1:])

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=is_autocast):
            own = weights(q, k)
            if call.dropout:
                own = F.dropout(own, p=call.dropout)
            is_apart = learns and not (own.requires_grad and _has_graph(call, q, k))
            if not kept and not is_apart:
                kept.append(own)
            out = torch.bmm(own.flatten(0, 1), v.flatten(0, 1))
            return out.view(*q.shape[:2], *out.shape[1:])

    return replace(call, scale=scale, implementation=WITH_WEIGHTS, run=run), weights


def _has_graph(call: Call, q: Tensor, k: Tensor) -> bool:
    """Return whether q and k of a run are part of a graph wherever those of the call are."""
    return all(
        new.grad_fn is not None or old.grad_fn is None for new, old in ((q, call.q), (k, call.k))
    )


PREFIX = "roundscope:"
BIAS = "position_bias"  # of T5: it is added to the scores as a mask is
_routes: dict[int, tuple[Any, int]] = {}  # configs by id, and by how many interceptions
# what a call may be given that changes nothing
IGNORED = frozenset(
    (
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
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

    Modules of other libraries are left alone. `answered` takes the chain of handlers of a module
    and a `Call`, and returns the output. The function that is returned restores the configs.

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


def implementation_of(module: Any) -> str | None:
    """Return the implementation of attention that a module's config names; None without one."""
    config = _config_of(module) if isinstance(module, nn.Module) else None
    return None if config is None else _own_name(config)


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
        chain = module.__dict__.get(CHAIN)
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


def _may_read(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function may read an argument: by a parameter, or by its **options."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return True
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if name in named or not code.co_flags & inspect.CO_VARKEYWORDS:
        return True
    options = code.co_varnames[len(named) + bool(code.co_flags & inspect.CO_VARARGS)]
    return options in code.co_cellvars or any(
        step.argval == options for step in dis.get_instructions(code)
    )


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
) -> Call:
    """Return the call that the arguments of an implementation make."""
    scale = options.pop("scaling", None)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dropout = options.pop("dropout", 0.0)
    given = [n for n, x in options.items() if x is not None and n not in IGNORED]
    unknown = [n for n in given if n != BIAS and _may_read(function, n)]
    if unknown:
        raise ValueError(
            f"{chain.layer.place}: its attention is given"
            f" {', '.join(unknown)}, which cannot be seen through; call"
            " model.set_attn_implementation('sdpa') first, or choose other layers"
        )
    kind = q.device.type
    is_autocast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=is_autocast):
            out = function(module, q, k, v, own_mask, scaling=scale, dropout=dropout, **options)[0]
        result: Tensor = out.transpose(1, 2)
        return result

    bias = options.get(BIAS)
    if bias is not None:  # of T5, which its own function adds to the scores as it adds the mask
        mask, own_mask = (bias if mask is None else bias + mask), mask
    else:
        own_mask = mask
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
