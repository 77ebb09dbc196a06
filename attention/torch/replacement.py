"""`use`: a PyTorch model whose attention runs, forward and backward, on chosen plans."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from roundscope.attention.arguments import block_given
from roundscope.attention.grammar.text import plan_of, text_of
from roundscope.attention.models.selection import Layer, chosen
from roundscope.attention.plans.named import note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.attention.torch.call import Call, Handler
from roundscope.attention.torch.calls import Interception, intercept
from roundscope.attention.torch.discovery import attention_layers
from roundscope.attention.torch.operator import attention, check_mask
from roundscope.attention.torch.ranges import lost_range, narrow_events
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown
from roundscope.emu.told import warn_outside

NO_BACKWARD = (  # which the kernels have not
    *("sage-int8", "fa3-e4m3", "fa3-fp8", "fa3-fp8-scaled"),
    *("mlx-sdpa", "flash-mla", "flashinfer-split"),
)
FORWARD_ONLY = (
    "fa4-fp8",
    "fa4-fp8-offset4",
    "fa4-fp8-threshold0",
    "cudnn-mxfp8",
    "mxfp8-attention",
)


@known_arguments
def use(
    model: nn.Module,
    plans: "Plan | str | Handler | Mapping[str, Plan | str | Handler]",
    *,
    block_q: int = 128,
    block_k: int = 128,
    modules: Iterable[str] | None = None,
) -> Interception:
    """Let a model run its attention, forward and backward, on chosen plans.

    Each layer computes `roundscope.torch.attention` of the q, k, v, mask, bias, scale, window,
    softcap and sinks that its own kernel would have got, in their types: autocast has been applied.
    The output is given to the model in q's type, as a kernel does. Where `attend` returns float32
    for inputs of 16 bits, as under "exact", that is one more rounding, to nearest even.

    A plan's seed is fixed, so a stochastic plan draws the same random bits in every layer of the
    same shape and in every step. A row of the mask in which nothing is visible gives 0, where
    softmax of equal scores gives the mean of V; rows of padding are such rows. A plan that rounds
    the FP16 or FP32 of a model to BF16, as "fa2" does, is obeyed with a warning; "fa2-fp16" is that
    kernel in FP16. Causal calls are aligned as the model's own: at the top left in SDPA, and at the
    bottom right in FlashAttention's package.

    Args:
        model: Any `nn.Module` whose layers call attention; see `attention_layers`.
        plans: A plan for all layers, or a dictionary from layers to plans. A key is "layers.A-B" or
            "layers.A", numbers of layers that call attention, from 0 in the model's order, both
            ends included; "*" for all; or a pattern of module paths, such as "encoder.*". The first
            key that fits a layer counts, and a layer that no key fits keeps the model's own kernel.
            A plan is a `Plan`, a preset's name, a text such as "fa2-bf16; O=bf16", or a function of
            your own that takes a `Call` and returns the output (B, N, T, Hv).
        block_q: Query rows of a tile.
        block_k: Keys of a tile.
        modules: The paths of the modules that call attention, where they are not found.

    Returns:
        The interception: `remove()`, or its end as a context manager, gives the model its own
        attention back. Attention that is used twice is that of the last call. Its `ranges` say of
        each layer that ran which events lose numbers whose format has too small a range for them,
        as FP8 without scales, of one batch entry and key head at the first call; "" if none does.
        A warning tells it of one layer, and which others of the same backward do too.

    Raises:
        TypeError: `model` or a plan has the wrong type.
        ValueError: A key fits no layer; the message lists the layers. Or a plan has an unknown
            word. In a forward: what a call asks for and plans do not model, such as dropout, or
            what a plan has not, such as a bias of the scores under "fa2"; the message names the
            layer.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from roundscope.torch import use
        >>> class Attention(nn.Module):
        ...     def forward(self, x):
        ...         return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> model, x = nn.Sequential(Attention(), Attention()), torch.randn(1, 2, 4, 8)
        >>> own = model(x)
        >>> with use(model, {"layers.0": "fa2-bf16", "*": "exact"}):
        ...     emulated = model(x)
        >>> bool((emulated - own).abs().max() < 0.1), torch.equal(emulated, own)
        (True, False)
        >>> torch.equal(model(x), own)
        True
    """
    block_q, block_k = block_given("block_q", block_q), block_given("block_k", block_k)
    by_key = plans if isinstance(plans, Mapping) else {"*": plans}
    if not by_key:
        raise ValueError("plans={}: give a plan, or a dictionary such as {'*': 'fa2-bf16'}")
    layers = list(attention_layers(model, modules))
    handlers: dict[int, Handler] = {}
    ranges: dict[int, str] = {}
    for key, plan in by_key.items():
        handler = _handler(plan, block_q, block_k, ranges)
        for layer in chosen(key, layers, "a key of plans"):
            handlers.setdefault(layer.number, handler)
    interception = intercept(
        model,
        lambda call: handlers[call.layer.number](call),
        layers=sorted(handlers),
        modules=modules,
    )
    interception.ranges = ranges
    return interception


def _handler(plan: Any, block_q: int, block_k: int, ranges: dict[int, str]) -> Handler:
    if callable(plan):
        handler: Callable[[Call], Tensor] = plan
        return handler
    if not isinstance(plan, str | Plan):
        raise TypeError(
            f"plans={shown(plan)}: give a Plan, a preset's name such as 'fa2-bf16', a function of a"
            " Call, or a dictionary of these such as {'layers.0': 'fa2-bf16', '*': 'exact'}"
        )
    text = plan if isinstance(plan, str) else text_of(plan)
    parsed = plan_of(text)  # refuses an unknown word now
    is_small = bool(narrow_events(parsed))

    def answer(call: Call) -> Tensor:
        out, how = _attended(call, text, block_q, block_k)
        if torch.compiler.is_compiling() or call.layer.number in ranges:
            return out
        base = parsed.name.partition(";")[0].strip()
        if out.requires_grad and base in (*NO_BACKWARD, *FORWARD_ONLY):
            why = "the kernel has no" if base in NO_BACKWARD else "the plan has no kernel's"
            warn_outside(
                f"use: {parsed.name}: {why} backward; the gradients are those of the backward of"
                " fa2-bf16 on its operands, which no library computes"
            )
        ranges[call.layer.number] = ""
        if is_small:

            def look(do: Tensor | None) -> None:
                found = ranges[call.layer.number] = lost_range(call, parsed, do, how)
                if not found or sum(map(bool, ranges.values())) > 1:
                    return
                tell = partial(_warn_of_range, call.layer, parsed.name, ranges)
                if do is None:
                    tell()
                else:  # once all layers of this backward are known
                    torch.autograd.Variable._execution_engine.queue_callback(tell)

            if out.requires_grad:
                out.register_hook(look)
            else:
                look(None)
        return out

    return answer


def _warn_of_range(layer: Layer, name: str, ranges: Mapping[int, str]) -> None:
    """Warn of what the range of a plan loses in a layer, and in which others so far."""
    others = [str(n) for n, found in sorted(ranges.items()) if found and n != layer.number]
    more = f"{len(others)} more layer{'s' * (len(others) > 1)} ({', '.join(others)})"
    warn_outside(
        f"use: {layer.place}: {name}: {ranges[layer.number]}"
        + (f"; and {more}, by `ranges` of what use returned" if others else "")
        + "; scale what is too small (the loss, for gradients), or take a plan with scales, such as"
        " fa3-fp8-scaled"
    )


def _warn_of_types(call: Call, text: str) -> None:
    """Warn, once where warnings are shown once, of a call that a plan rounds to another type."""
    types = (str(x.dtype).removeprefix("torch.") for x in (call.q, call.k, call.v))
    if note := note_on_types(plan_of(text), types, wide=True):
        warn_outside(f"use: {note}")


def _attended(call: Call, text: str, block_q: int, block_k: int) -> tuple[Tensor, dict[str, Any]]:
    """Return the output of a call by a plan, in the type of q, and the arguments it was given."""
    if not torch.compiler.is_compiling():
        _warn_of_types(call, text)
    where = f"{call.layer.place}: "
    if call.dropout:
        raise ValueError(
            f"{where}its attention drops weights with probability {call.dropout:g}, which plans do"
            " not model; set the dropout of its attention to 0 (in transformers, the config's"
            " attention_dropout or attn_pdrop), or call model.eval()"
        )
    mask = call.mask
    check_mask(mask, where)
    named = ("is_causal", "alignment", "scale", "window", "softcap", "sinks")
    how = {name: getattr(call, name) for name in named}
    how |= {"plan": text, "mask": mask, "block_q": block_q, "block_k": block_k}
    if torch.compiler.is_compiling():
        return attention(call.q, call.k, call.v, **how).to(call.q.dtype), how
    try:
        return attention(call.q, call.k, call.v, **how).to(call.q.dtype), how
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None
