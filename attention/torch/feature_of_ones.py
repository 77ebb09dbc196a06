"""The feature of ones: row sums of dS from any kernel, by its own backward.

    K' = [K | 1 0 ..]    Q' = [Q | 0 ..]    V' = [V | 0 ..]    dO' = [dO | 0 ..]

The scores, the output and delta are what they were, and

    dQ' = scale dS K' = [dQ | scale r 0 ..],   r[t] = sum over s of dS[t, s]

so the feature of dQ' behind those of dQ is scale * r, which is 0 in exact arithmetic. All four have
the same width, a multiple of 8, as kernels need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundscope.attention.torch.calls import Call

WIDEST = 256  # features of a head that fused kernels take


def extended_width(features: int, value_features: int) -> int:
    """Return the width of the extended tensors: a multiple of 8 with room for a feature more.

    Example:
        >>> extended_width(64, 64), extended_width(36, 48)
        (72, 48)
    """
    return -(-max(features + 1, value_features) // 8) * 8


def with_zeros(x: Tensor, width: int) -> Tensor:
    """Return a tensor with features of 0 behind its own."""
    return F.pad(x, (0, width - x.shape[-1]))


def with_ones(k: Tensor, width: int) -> Tensor:
    """Return keys with a feature of ones behind their own, and then zeros."""
    wide = with_zeros(k, width)
    wide[..., k.shape[-1]] = 1.0
    return wide


def check_row_sums(call: Call, why: str) -> None:
    """Raise ValueError for a call whose rows of dS have no known sum over the keys.

    Args:
        call: The call.
        why: What the caller wants of them, for the message.
    """
    where = f"layer {call.layer.number} ({call.layer.name})"
    if call.q.ndim != 4:
        raise ValueError(
            f"{where}: q has shape {tuple(call.q.shape)}, must be (batch, heads, tokens, features)"
            f" {why}; choose other layers"
        )
    for name, reason in (
        ("softcap", "the derivative of tanh stands between dS and the scores"),
        ("sinks", "the sink takes part in their sum"),
    ):
        if getattr(call, name) is not None:
            raise ValueError(
                f"{where}: has {name}, so rows of dS need not sum to zero over the keys, since"
                f" {reason}; it cannot be {why}: choose other layers"
            )
    width = extended_width(call.q.shape[-1], call.v.shape[-1])
    is_fused = call.implementation != "eager" and call.q.is_cuda
    if is_fused and width > WIDEST:
        raise ValueError(
            f"{where}: heads of {call.q.shape[-1]} features become {width} with a feature of ones,"
            f" and fused kernels take {WIDEST} at most; it cannot be {why}: choose other layers"
        )


@contextmanager
def same_kernels(allowed: list[SDPBackend], like: Tensor) -> Iterator[None]:
    """Let SDPA choose among the kernels that `kernels_allowed` returned, without autocast."""
    with sdpa_kernel(allowed), torch.autocast(like.device.type, enabled=False):
        yield


def kernels_allowed() -> list[SDPBackend]:
    """Return the kernels among which SDPA may choose here: those of an `sdpa_kernel` block."""
    cuda = torch.backends.cuda
    kernels = (
        (SDPBackend.FLASH_ATTENTION, cuda.flash_sdp_enabled()),
        (SDPBackend.EFFICIENT_ATTENTION, cuda.mem_efficient_sdp_enabled()),
        (SDPBackend.CUDNN_ATTENTION, cuda.cudnn_sdp_enabled()),
        (SDPBackend.MATH, cuda.math_sdp_enabled()),
    )
    return [kernel for kernel, is_allowed in kernels if is_allowed]


def kernel_chosen(call: Call, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Return the name of the kernel that SDPA takes for these tensors of a call.

    None where PyTorch does not tell, or the call is none of SDPA's.
    """
    choice = getattr(torch, "_fused_sdp_choice", None)
    if choice is None or call.implementation != "sdpa":
        return None
    number = choice(
        q, k, v, call.mask, call.dropout, call.is_causal, scale=call.scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )  # fmt: skip
    return str(SDPBackend(number).name)
