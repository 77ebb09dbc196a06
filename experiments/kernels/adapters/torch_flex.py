"""`torch.nn.attention.flex_attention`, compiled as its documentation asks for, with windows and
softcaps.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from roundscope.experiments.kernels.adapters.torch_call import called, device
from roundscope.experiments.kernels.outputs import Inputs, Outputs


@cache
def _compiled():  # type: ignore[no-untyped-def]
    return torch.compile(flex_attention, dynamic=False)


def compiled(x: Inputs) -> Outputs:
    """The call; causal and in a window by a block mask."""
    torch._dynamo.reset()  # after eight shapes it would run what it has not compiled
    rows, keys = x.q.shape[1], x.k.shape[1]
    window, cap = x.window or max(rows, keys), x.softcap

    def is_seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (
            (q >= k if x.is_causal else k - q < window) & (q - k < window) if x.window else q >= k
        )

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    mask = (
        create_block_mask(is_seen, None, None, rows, keys, device=device())
        if x.is_causal or x.window
        else None
    )

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _compiled()(
            q, k, v, score_mod=capped if cap else None, block_mask=mask, scale=x.scale
        )

    return called(attention, x)
