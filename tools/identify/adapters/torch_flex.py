"""`torch.nn.attention.flex_attention`, with windows and softcaps.

It is compiled, as its documentation asks for.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called, device


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def compiled(x: Inputs) -> Outputs:
    """Call the kernel; causality and windows are a block mask."""
    torch._dynamo.reset()  # after eight shapes it would stop compiling
    rows, keys = x.q.shape[1], x.k.shape[1]
    window, cap = x.window or max(rows, keys), x.softcap

    def is_seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if not x.window:
            return q >= k
        return (q >= k if x.is_causal else k - q < window) & (q - k < window)

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert cap is not None
        return cap * torch.tanh(score / cap)

    mask = (
        create_block_mask(is_seen, None, None, rows, keys, device=device())
        if x.is_causal or x.window
        else None
    )

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = _compiled()(
            *(q, k, v),
            score_mod=capped if cap else None,
            block_mask=mask,
            scale=x.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out

    return called(attention, x, backward=device() != "cpu")  # which has no backward of it
