"""`torch.nn.attention.flex_attention`, compiled as its documentation asks for."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from roundscope.experiments.kernels.adapters.torch_call import called, device
from roundscope.experiments.kernels.outputs import Inputs, Outputs


@cache
def _compiled():  # type: ignore[no-untyped-def]
    return torch.compile(flex_attention, dynamic=False)


def _is_seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def compiled(x: Inputs) -> Outputs:
    """The call; causal by a block mask."""
    torch._dynamo.reset()  # after eight shapes it would run what it has not compiled
    rows, keys = x.q.shape[1], x.k.shape[1]
    mask = None
    if x.is_causal:
        mask = create_block_mask(_is_seen, None, None, rows, keys, device=device())

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _compiled()(q, k, v, block_mask=mask, scale=x.scale)

    return called(attention, x)
