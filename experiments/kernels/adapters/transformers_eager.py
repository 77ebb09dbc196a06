"""Attention as transformers computes it with `attn_implementation="eager"`: products in BF16, the softmax in FP32."""

from types import SimpleNamespace

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import eager_attention_forward

from roundscope.experiments.kernels.adapters.torch_call import called, device
from roundscope.experiments.kernels.outputs import Inputs, Outputs


def eager(x: Inputs) -> Outputs:
    """The call, with the additive mask that the library makes."""
    rows, keys = x.q.shape[1], x.k.shape[1]
    mask = None
    if x.is_causal:
        least = torch.finfo(torch.bfloat16).min
        mask = torch.full((1, 1, rows, keys), least, dtype=torch.bfloat16, device=device()).triu(1)
    module = SimpleNamespace(num_key_value_groups=1, training=False)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = eager_attention_forward(module, q, k, v, mask, x.scale)
        return out.transpose(1, 2)

    return called(attention, x)
