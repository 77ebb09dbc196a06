"""`torch.nn.functional.scaled_dot_product_attention` with each of its back ends."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called, tensor


def _run(backend: SDPBackend, x: Inputs) -> Outputs:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                *(q, k, v),
                is_causal=x.is_causal,
                scale=x.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )

    return called(attention, x, _lse(backend, x))


def _lse(backend: SDPBackend, x: Inputs) -> Tensor | None:
    """Return the logarithms of the row sums; some back ends have an operator that returns them."""
    if not torch.cuda.is_available() or x.q.shape[2] != x.k.shape[2]:
        return None
    q, k, v = (tensor(a) for a in (x.q, x.k, x.v))
    aten: Any = torch.ops.aten
    lse: Tensor
    if backend is SDPBackend.FLASH_ATTENTION:
        op = aten._scaled_dot_product_flash_attention
        lse = op(q, k, v, 0.0, x.is_causal, False, scale=x.scale)[1]
        return lse
    if backend is SDPBackend.EFFICIENT_ATTENTION:
        op = aten._scaled_dot_product_efficient_attention
        lse = op(q, k, v, None, True, 0.0, x.is_causal, scale=x.scale)[1]
        return lse[..., : x.q.shape[1]]
    if backend is SDPBackend.CUDNN_ATTENTION:
        op = aten._scaled_dot_product_cudnn_attention
        lse = op(q, k, v, None, True, 0.0, x.is_causal, False, scale=x.scale)[1]
        return lse.reshape(q.shape[:3])
    return None


flash = partial(_run, SDPBackend.FLASH_ATTENTION)
efficient = partial(_run, SDPBackend.EFFICIENT_ATTENTION)
cudnn = partial(_run, SDPBackend.CUDNN_ATTENTION)
math = partial(_run, SDPBackend.MATH)
