"""Row sums of dS from any kernel, by its own backward, and `correct`: gradients without them.

In exact arithmetic each row of dS = P (dP - delta) sums to zero, since delta = rowsum(P dP) and the
rows of P sum to 1. A fused kernel takes delta from its rounded output, and the sums r[t] are not 0.
A feature of ones shows them:

    K' = [K | 1 0 ..]    Q' = [Q | 0 ..]    V' = [V | 0 ..]    dO' = [dO | 0 ..]

The scores, the output and delta are what they were, and

    scale dS K' = [dQ | scale r 0 ..],   r[t] = sum over s of dS[t, s]

All four have the same width, a multiple of 8, as kernels need it. The rows get their sum back to
zero, without a look into the kernel, if

    dS' = dS - r P     (row t less r[t] P[t, s])

which is what delta + r in the place of delta gives, and so

    dQ' = dQ - scale r (P K)        row t of P K times r[t]
    dK' = dK - scale P^T (r Q)      row t of Q times r[t]
    dV' = dV

Every term comes from the kernel: P K is its forward with K in the place of V, and P^T (r Q) is that
call's dV for dO = r Q.

What it costs: the forward is the model's own, once, with the bits that it has; only q, k and v are
kept. The backward runs two forwards and two backwards, one with H + 8 features and one with H,
where the model runs one backward with H.

Where it is not exact: r, P K and P^T (r Q) are rounded to the kernel's output type, so of the sums
2^-9 remains in BF16, with random signs. What is removed is a delta that errs, by as much for all
keys of a row. Errors of dS that sum to zero, and the noise of the kernel's products, stay.

With an emulated kernel, `use(model, plan.changed("delta_from=CENTERED"))` does it at the source:
delta = rowsum(P dP) / rowsum(P).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundscope.attention.models.selection import Layer, chosen
from roundscope.attention.torch.call import CHAIN, Call, Run
from roundscope.attention.torch.calls import Interception, intercept
from roundscope.attention.torch.discovery import attention_layers
from roundscope.attention.torch.other_calls import implementation_of
from roundscope.emu.errors import known_arguments
from roundscope.emu.told import warn_outside

WIDEST = 256  # features of a head that fused kernels take
SOFTCAP = "attn_logit_softcapping"  # the attribute of Gemma 2 and its like in transformers
REASONS = {  # why rows of dS need not sum to zero
    "softcap": "the derivative of tanh stands between dS and the scores",
    "sinks": "the sink takes part in their sum",
}


def extended_width(features: int, value_features: int) -> int:
    """Return the width of the extended tensors: a multiple of 8 with room for a feature more.

    Example:
        >>> extended_width(64, 64), extended_width(36, 48)
        (72, 48)
    """
    return -(-max(features + 1, value_features) // 8) * 8


def extended(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    """Return Q', K', V' and dO', with a feature of ones behind K and zeros behind the others."""
    width = extended_width(q.shape[-1], v.shape[-1])
    wide = tuple(F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v, do))
    wide[1][..., k.shape[-1]] = 1.0
    return wide


def check_layers(layers: Mapping[Layer, nn.Module], why: str) -> None:
    """Raise ValueError if a layer of transformers has sinks or a softcap, before anything runs.

    Args:
        layers: Layers and their modules.
        why: What the caller wants of them, for the message.
    """
    for layer, module in layers.items():
        if implementation_of(module) and isinstance(getattr(module, "sinks", None), Tensor):
            raise _refused(layer, "sinks", why)
        forward: Any = inspect.unwrap(type(module).forward)
        is_capped = implementation_of(module) and getattr(module, SOFTCAP, None) is not None
        if is_capped and SOFTCAP in forward.__code__.co_names:
            raise _refused(layer, "softcap", why)


def check_row_sums(call: Call, why: str) -> None:
    """Raise ValueError for a call whose rows of dS have no known sum over the keys.

    Args:
        call: The call.
        why: What the caller wants of them, for the message.
    """
    where = call.layer.place
    for name in REASONS:
        if getattr(call, name) is not None:
            raise _refused(call.layer, name, why)
    width = extended_width(call.q.shape[-1], call.v.shape[-1])
    is_fused = call.implementation != "eager" and call.q.is_cuda
    if is_fused and width > WIDEST:
        raise ValueError(
            f"{where}: heads of {call.q.shape[-1]} features become {width} with a feature of ones,"
            f" and fused kernels take {WIDEST} at most; it cannot be {why}: choose other layers"
        )


def _refused(layer: Layer, name: str, why: str) -> ValueError:
    return ValueError(
        f"{layer.place}: has {name}, so rows of dS need not sum to zero over"
        f" the keys, since {REASONS[name]}; it cannot be {why}: choose other layers, or"
        " capture(model, path) and `roundscope trace` the file, which tells biased events"
    )


@contextmanager
def same_kernels(allowed: list[SDPBackend], like: Tensor) -> Iterator[None]:
    """Let SDPA choose among the kernels that `kernels_allowed` returned, without autocast."""
    with sdpa_kernel(allowed), torch.autocast(like.device.type, enabled=False):
        yield


@contextmanager
def products_in_binary32() -> Iterator[None]:
    """Multiply float32 matrices in binary32, also where a program asks for TF32."""
    own = torch.backends.cuda.matmul
    before, own.fp32_precision = own.fp32_precision, "ieee"
    try:
        yield
    finally:
        own.fp32_precision = before


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


@known_arguments
def correct(
    model: nn.Module,
    layers: str | int | Sequence[int] = "*",
    *,
    modules: Iterable[str] | None = None,
) -> Interception:
    """Take the row sums of dS out of the gradients of a model's own attention.

    dQ and dK lose the part that a wrong delta makes in them (the equations are at the top of
    `roundscope.attention.torch.correction`). Outputs keep their bits. It works with every kernel
    whose calls can be seen, fused ones as well, and may be installed in the middle of a training,
    at the alarm of `watch`.

    The attention of these layers takes 2.5 times as long, forward and backward, for it runs two
    forwards and one backward more (2.5 in FP32 and 2.6 in BF16 on a CPU, 1,024 tokens, H = 64). In
    BF16 noise of about 2^-9 of what is taken out stays.

    Args:
        model: Any `nn.Module`.
        layers: Which layers, "*" for all; see `attention.models.selection.chosen`.
        modules: The paths of the modules that call attention, where they are not found.

    Returns:
        An `Interception`, whose `remove()` gives the model its own gradients back.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: No such layers; a layer of the transformers library with sinks or a softcap; or,
            in a forward, a call that cannot be corrected: those of another model, dropout, a mask
            that learns, heads that are too wide.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Attention(nn.Module):
        ...     def forward(self, x):
        ...         return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> model, x = nn.Sequential(Attention()), torch.randn(1, 2, 16, 8)
        >>> out = model(x)
        >>> with correct(model):
        ...     bool((model(x) == out).all())
        True
    """
    known = attention_layers(model, modules)
    check_layers({layer: known[layer] for layer in chosen(layers, list(known))}, "corrected")
    again = [
        layer
        for layer, module in known.items()
        if (chain := module.__dict__.get(CHAIN)) is not None
        and any(handler is corrected for _, handler in chain.handlers)
    ]
    if again:
        warn_outside(
            f"correct: {again[0].place} is corrected already, and now"
            " twice, which takes twice as long and changes nothing more; call remove() of the first"
        )
    return intercept(model, corrected, layers=layers, modules=modules)


@known_arguments
@torch.compiler.disable  # type: ignore[untyped-decorator]
def corrected(call: Call) -> Tensor:
    """Return the output of a call, with gradients whose rows of dS sum to zero.

    This is the handler that `correct` installs.

    Raises:
        ValueError: A call that cannot be corrected; see `correct`.
    """
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))):
        return call.run(call.q, call.k, call.v)
    check_row_sums(call, "corrected")
    where = call.layer.place
    if call.dropout:
        raise ValueError(
            f"{where}: drops {call.dropout:g} of the weights, other ones in every call; it can be"
            " corrected with dropout 0"
        )
    if call.mask is not None and call.mask.requires_grad:
        raise ValueError(
            f"{where}: its mask has a gradient, which the correction does not give; freeze the"
            " bias (requires_grad_(False) of its weight), or choose other layers"
        )
    apply: Callable[..., Tensor] = _Corrected.apply
    return apply(call.q, call.k, call.v, call.run, call.scale, kernels_allowed())


class _Corrected(torch.autograd.Function):
    """A kernel with its own forward, and the corrected backward."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, run: Run, scale: float, allowed: list[SDPBackend]
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.run, ctx.scale, ctx.allowed = run, scale, allowed
        with torch.enable_grad():  # as the model calls it, since SDPA chooses by it
            own = (x.detach().requires_grad_(x.requires_grad) for x in (q, k, v))
            return run(*own).detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        with torch.enable_grad(), same_kernels(ctx.allowed, q):
            dq, dk, dv, r = _with_row_sums(ctx.run, ctx.scale, q, k, v, do)
            values = k.detach().clone().requires_grad_()
            pk = ctx.run(q.detach(), k.detach(), values)
            size = r.abs().amax().clamp_min(torch.finfo(r.dtype).tiny)  # else FP16 may underflow
            (dk_of_r,) = torch.autograd.grad(pk, values, (r / size * q).to(q.dtype))
        dq = dq - ctx.scale * r * pk.detach()
        dk = dk - ctx.scale * size * dk_of_r
        return dq.to(q.dtype), dk.to(k.dtype), dv, None, None, None


def _with_row_sums(
    run: Run, scale: float, q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the kernel's own dQ, dK and dV, and the row sums of dS, (B, N, T, 1).

    r is in binary32 at least, so that what it is multiplied with is too.
    """
    features, (*inputs, wide_do) = q.shape[-1], extended(q, k, v, do)
    wide = [x.detach().requires_grad_() for x in inputs]
    dq, dk, dv = torch.autograd.grad(run(*wide), wide, wide_do)
    r = dq[..., features : features + 1].to(torch.promote_types(q.dtype, torch.float32)) / scale
    return dq[..., :features], dk[..., :features], dv[..., : v.shape[-1]], r
