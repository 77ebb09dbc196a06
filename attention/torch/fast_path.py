"""The fast path of PyTorch's transformer modules, in which no attention is called.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` take it in evaluation mode without
gradients: one function of PyTorch computes the whole module, with other last bits. While the
attention of such a module is seen it is off, so `takes_fast_path` says which forwards would have
taken it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

_enabled: list[bool] = []  # for each interception of such modules, whether the fast path was on
OFF = (
    "the fast path of nn.MultiheadAttention, which PyTorch takes here without Roundscope, is off"
    " while attention is seen, and what runs in its place may have other last bits;"
    " torch.backends.mha.set_fastpath_enabled(False) in the model gives its bits everywhere"
)


def without_fast_path() -> Callable[[], None]:
    """Switch the fast path off, in which layers skip padding and call no attention.

    The switch is `torch.backends.mha.set_fastpath_enabled`, which is one for the process. The
    function that is returned restores it, as it was before the first of several calls.
    """
    _enabled.append(torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)

    def undo() -> None:
        before = _enabled.pop()
        if not _enabled:
            torch.backends.mha.set_fastpath_enabled(before)

    return undo


def encoder_attention(model: nn.Module) -> set[int]:
    """Return the identities of modules of attention in encoder layers that have a fast path."""
    return {
        id(layer.self_attn)
        for layer in model.modules()
        if isinstance(layer, nn.TransformerEncoderLayer) and layer.activation_relu_or_gelu
    }


def takes_fast_path(
    module: nn.Module,
    is_in_encoder: bool,
    query: Any = None,
    key: Any = None,
    value: Any = None,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    **options: Any,
) -> bool:
    """Return whether a forward of a module would take the fast path if it were not off.

    These are the conditions of `nn.MultiheadAttention.forward` in torch 2.13 for tensors. In an
    encoder layer, which has a path of its own, a mask of numbers is one that the layer has made of
    booleans.

    Args:
        module: The module.
        is_in_encoder: Whether it is the attention of an encoder layer that has a fast path.
        query: What it was given, as the arguments after it.
        key: Keys.
        value: Values.
        key_padding_mask: Which keys are hidden.
        need_weights: Changes nothing.
        attn_mask: Which scores are hidden.
        options: Change nothing.
    """
    masks = (key_padding_mask, attn_mask)
    if not isinstance(module, nn.MultiheadAttention) or torch.compiler.is_compiling():
        return False
    if not _enabled or not _enabled[0]:
        return False
    weights = [module.in_proj_weight, module.in_proj_bias, *module.out_proj.parameters()]
    if any(x is None for x in weights[:2]) or not isinstance(query, Tensor):
        return False
    modes = _get_current_function_mode_stack()
    return (
        query.dim() == 3
        and query is key is value
        and all(x.dtype == query.dtype for x in weights[:2])
        and not module.training
        and module.num_heads % 2 == 0
        and module.batch_first
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and not torch.is_autocast_enabled()
        and (is_in_encoder or not any(x is not None and x.is_floating_point() for x in masks))
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in (query, *weights)))
        and all(type(mode).__module__.startswith("roundscope.") for mode in modes)
    )
