"""The attention inside `nn.MultiheadAttention`, seen.

`F.multi_head_attention_forward` gives itself to a `TorchFunctionMode` as a whole, and the mode is
off inside. Here its code runs with a `has_torch_function` that says no, so that the mode stays on
and is given the operations inside, SDPA among them. Nothing of PyTorch is replaced meanwhile: other
threads and compiled functions see no difference.

With `need_weights=True`, which is the default of `nn.MultiheadAttention`, it does not call SDPA: it
multiplies out scores and weights. `weighted` makes these operations the call's own attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from roundscope.attention.torch.calls import Call

WITH_WEIGHTS = "nn.MultiheadAttention with need_weights"  # Call.implementation
_slow: list[bool] = []  # for each interception of such modules, whether the fast path was on


def _no_torch_function(tensors: Any) -> bool:
    return False


def _opened(function: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return a function of PyTorch that does not give itself to modes as a whole."""
    known = function.__globals__ | {"has_torch_function": _no_torch_function}
    own = FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    own.__kwdefaults__ = function.__kwdefaults__
    return own


opened = _opened(F.multi_head_attention_forward)


def traceable(function: Any) -> Any:
    """Return a function as torch.compile traces it in a mode, where `Tensor.unflatten` fails."""
    return torch.unflatten if function is Tensor.unflatten else function


def without_fast_path() -> Callable[[], None]:
    """Switch the fast path of `nn.TransformerEncoder` off, which calls no attention of a module.

    It serves models in eval mode without gradients, layer by layer, and skips padding. The switch
    is `torch.backends.mha.set_fastpath_enabled`, which is one for the process.

    Returns:
        A function that restores it, as it was before the first of several calls.
    """
    _slow.append(torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)

    def undo() -> None:
        before = _slow.pop()
        if not _slow:
            torch.backends.mha.set_fastpath_enabled(before)

    return undo


def weighted(
    call_of: Callable[..., Call], answer: Callable[[Call], Tensor], *args: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return what `F.multi_head_attention_forward` does with need_weights=True.

    The weights are those of the call's own attention, also where handlers answer otherwise.

    Args:
        call_of: Makes a `Call` of the arguments of SDPA.
        answer: Returns the output of a call by the handlers.
        *args: Arguments of `F.multi_head_attention_forward`.
        **options: More of them.
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
    from dataclasses import replace

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
