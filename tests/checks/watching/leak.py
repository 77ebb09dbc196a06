"""FlashAttention of PyTorch with a planted leak: its backward reads an output of fewer bits.

A fused backward takes delta = rowsum(dO O) from the rounded output. Here the kernel's own backward
is called with an output that was rounded again, to `bits` significant bits, toward zero (which is
biased) or to nearest (which is not). All else is the kernel's own, forward and backward.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roundscope.emu import Rounding, RoundingMode, format_named, round_to
from roundscope.torch import Call

aten: Any = torch.ops.aten


def leaking(bits: int, mode: str) -> Callable[[Call], Tensor]:
    """Return a handler for `roundscope.torch.use`: the kernel, with that output in its backward."""

    def handler(call: Call) -> Tensor:
        assert call.is_causal and call.mask is None and not call.dropout
        out: Tensor = _Leaking.apply(call.q, call.k, call.v, call.scale, bits, mode)
        return out

    return handler


class _Leaking(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, bits: int, mode: str
    ) -> Tensor:
        if q.is_cuda:
            out, lse, *rest, _ = aten._scaled_dot_product_flash_attention(
                q, k, v, 0.0, True, False, scale=scale
            )
            ctx.rest = rest
        else:
            out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, True, scale=scale
            )
            ctx.rest = None
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.bits, ctx.mode = scale, bits, mode
        return out

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        read = rounded(out, ctx.bits, ctx.mode)
        if ctx.rest is None:
            gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                do, q, k, v, read, lse, 0.0, True, scale=ctx.scale
            )
        else:
            of_q, of_k, most_q, most_k, seed, offset = ctx.rest
            gradients = aten._scaled_dot_product_flash_attention_backward(
                do, q, k, v, read, lse, of_q, of_k, most_q, most_k, 0.0, True, seed, offset,
                scale=ctx.scale,
            )  # fmt: skip
        return *gradients, None, None, None


def rounded(x: Tensor, bits: int, mode: str) -> Tensor:
    """Return BF16 numbers rounded to fewer significant bits, on their own device."""
    low = 8 - bits  # significant bits of BF16 that go
    words = x.view(torch.int16).to(torch.int32) & 0xFFFF
    if mode == "ties-to-even":
        words = words + ((1 << (low - 1)) - 1) + ((words >> low) & 1)
    words = words >> low << low
    return words.to(torch.int16).view(torch.bfloat16)


def check_rounded() -> None:
    """Compare `rounded` with `roundscope.emu.round_to` on every finite BF16 number."""
    words = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    words = words[words.abs() < 1e38]
    for bits in range(2, 8):
        for mode in ("toward-zero", "ties-to-even"):
            own = rounded(words, bits, mode).float().numpy()
            rule = Rounding(format=format_named(f"e8m{bits - 1}"), mode=RoundingMode(mode))
            assert (own == round_to(words.float().numpy(), rule)).all(), (bits, mode)
