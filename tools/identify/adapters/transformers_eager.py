"""Attention as transformers computes it with `attn_implementation="eager"`.

Products are in BF16, the softmax in FP32 or, for gpt-oss, in BF16.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called, device


def eager(x: Inputs) -> Outputs:
    """Call the function of Llama's models, or, with a softcap, that of Gemma 2's."""
    if x.softcap is not None:
        from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2

        return _called(x, gemma2, softcap=x.softcap)
    from transformers.models.llama.modeling_llama import eager_attention_forward as llama

    return _called(x, llama)


def gpt_oss(x: Inputs) -> Outputs:
    """Call the function of gpt-oss, which has sinks. Raises ValueError without them."""
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    if x.sinks is None:
        raise ValueError(
            "sinks=None: gpt-oss has a logit for each head; give Inputs(sinks=...) of shape (N,)"
        )
    return _called(
        x, eager_attention_forward, torch.from_numpy(x.sinks).to(device(), torch.bfloat16)
    )


def _called(
    x: Inputs, forward: Callable[..., Any], sinks: Tensor | None = None, **options: Any
) -> Outputs:
    """Call the function with the additive mask that the library makes.

    The function repeats key heads that query heads share (`repeat_kv`).
    """
    rows, keys = x.q.shape[1], x.k.shape[1]
    mask = None
    if x.is_causal:
        least = torch.finfo(torch.bfloat16).min
        mask = torch.full((1, 1, rows, keys), least, dtype=torch.bfloat16, device=device()).triu(1)
    module = SimpleNamespace(
        num_key_value_groups=x.q.shape[2] // x.k.shape[2],
        training=False,
        head_dim=x.q.shape[3],
        sinks=sinks,
    )

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = forward(module, q, k, v, mask, scaling=x.scale, **options)[0]
        return out.transpose(1, 2)

    return called(attention, x)
