"""The calls of attention in a PyTorch model: where they are, what they are given, and who answers.

`attention_layers` finds the modules that call attention, `intercept` puts a function in the place
of their attention. Capturing, choosing plans and watching are such functions.

The `forward` of each of these modules is wrapped, so that a forward that is repeated for
activation checkpointing is seen too, in whatever thread. `F.scaled_dot_product_attention` is seen
by a `TorchFunctionMode` inside the wrapper; `attention.torch.other_calls` has the attention that
does not call it, of `nn.MultiheadAttention` and of the transformers library.

A copy of an intercepted model, by `copy.deepcopy` or by pickling it, has its own attention.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper, wraps
from types import MappingProxyType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from roundscope.attention.models.selection import Layer, Removable, chosen
from roundscope.attention.torch import other_calls
from roundscope.attention.torch.call import CHAIN, Call, Handler
from roundscope.attention.torch.declared import MARK
from roundscope.attention.torch.discovery import MARK_IT, attention_layers, tell_unseen
from roundscope.attention.torch.fast_path import (
    OFF,
    encoder_attention,
    takes_fast_path,
    without_fast_path,
)
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown
from roundscope.emu.told import warn_outside


class Interception(Removable):
    """Handlers that were put in the place of a model's attention, until `remove` is called.

    It is also a context manager that removes them at its end; `layers` are those that are seen, and
    `ranges` what `use` has to say of the range of numbers of a layer, by its number.
    """

    ranges: Mapping[int, str] = MappingProxyType({})


@known_arguments
def intercept(
    model: nn.Module,
    handler: Handler,
    *,
    layers: str | int | Sequence[int] = "*",
    modules: Iterable[str] | None = None,
    is_told: bool = True,
) -> Interception:
    """Call `handler` in the place of a model's attention.

    Interceptions nest: the one installed last sees a call first, and its `call.run` is what would
    have run without it. A layer whose forward ends without a call that was seen raises an error,
    since a kernel that is reached in another way would pass unnoticed.

    While a layer is an `nn.MultiheadAttention`, the fast path of PyTorch's transformer modules is
    off (`torch.backends.mha.set_fastpath_enabled`), which eval mode takes without gradients and in
    which no attention is called; a warning says so where it would have been taken. With
    `need_weights=True`, its default, the weights that it returns are its own, softmax of its
    scores, whatever the handler answers.

    Args:
        model: Any `nn.Module`.
        handler: Takes a `Call` and returns the output (B, N, T, Hv), for instance
            `lambda call: call.run(call.q, call.k, call.v)`.
        layers: Which layers, "*" for all; see `attention.models.selection.chosen`.
        modules: See `attention_layers`.
        is_told: Whether a warning says that PyTorch's fast path would have been taken.

    Returns:
        An `Interception`, which removes the handler again.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: No such layers, an implementation whose calls cannot be seen, or an
            `nn.DataParallel`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from roundscope.attention.torch.calls import intercept
        >>> class Attention(nn.Module):
        ...     def forward(self, x):
        ...         return nn.functional.scaled_dot_product_attention(x, x, x)
        >>> def told(call):
        ...     print(call.layer.number, tuple(call.q.shape), call.is_causal)
        ...     return call.run(call.q, call.k, call.v)
        >>> model = nn.Sequential(Attention())
        >>> with intercept(model, told):
        ...     out = model(torch.ones(1, 2, 4, 8))
        0 (1, 2, 4, 8) False
    """
    if not callable(handler):
        raise TypeError(f"handler={shown(handler)}: give a function of a Call")
    found = attention_layers(model, modules)
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise ValueError(
            "model: nn.DataParallel runs copies of its module; give model.module and run that, or"
            " use nn.parallel.DistributedDataParallel"
        )
    own = chosen(layers, list(found))
    if modules is None:
        tell_unseen(model, found.values())
    in_encoder = encoder_attention(model)
    undo: list[Callable[[], None]] = []
    try:
        for layer in own:
            undo.append(_installed(found[layer], layer, handler))
            chain: _Chain = found[layer].__dict__[CHAIN]
            chain.is_in_encoder = id(found[layer]) in in_encoder
            chain.is_told = is_told
        if any(isinstance(found[layer], nn.MultiheadAttention) for layer in own):
            undo.append(without_fast_path())
        undo.append(other_calls.routed([found[layer] for layer in own], _answered))
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    return Interception(own, undo)


class _Chain:
    """The handlers of a module, the first installed first, each with the layer that it knows.

    A copy of the module has None instead.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.calls = 0
        self.is_in_encoder = self.is_fast_path_off = False
        self.is_told = True
        self.handlers: list[tuple[Layer, Handler]] = []
        self.restore: Callable[[], None]  # gives the module its own forward back

    @property
    def layer(self) -> Layer:
        """The layer as the handler that was installed last knows it."""
        return self.handlers[-1][0]

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None


class Wrapped:
    """A function of a module that something else answers; a copy of the module gets the function.

    It has the name and the signature of the function.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        update_wrapper(self, forward)  # type: ignore[arg-type]  # it is called by its subclasses
        self.forward = forward  # the attributes that were copied may have one of this name

    def __reduce__(self) -> Any:
        if isinstance(self.forward, MethodType):
            return self.forward.__reduce__()
        return partial, (self.forward,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.forward, memo)


class _Seen(Wrapped):
    """A module's forward that lets its chain answer the calls of attention.

    Without handlers it is the forward: others may have wrapped it and still call it.
    """

    def __init__(self, forward: Callable[..., Any], chain: _Chain) -> None:
        super().__init__(forward)
        self.chain = chain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        chain = self.chain
        if not chain.handlers:
            return self.forward(*args, **kwargs)
        chain.calls = 0
        chain.is_fast_path_off = takes_fast_path(chain.module, chain.is_in_encoder, *args, **kwargs)
        if chain.is_fast_path_off and chain.is_told:
            warn_outside(OFF)
        with _Sdpa(chain):
            result = self.forward(*args, **kwargs)
        if not chain.calls:
            raise RuntimeError(
                f"{chain.layer.place}: its forward ended without a call"
                " of F.scaled_dot_product_attention that could be seen; it has reached its kernel"
                f" in another way. {self._repair()}"
            )
        return result

    def _repair(self) -> str:
        name = other_calls.implementation_of(getattr(self.forward, "__self__", None))
        if name not in (None, "sdpa"):
            return (
                f"Its implementation is {name}: make the model with attn_implementation='sdpa'"
                f" (from_pretrained and from_config take it), or, where it has none, {MARK_IT}"
            )
        return (
            f"In its own code, {MARK_IT}, also where another kernel does it, as"
            " attention_function(flex_attention), whose programs become a mask and a bias; or"
            " choose other layers"
        )


def _installed(module: nn.Module, layer: Layer, handler: Handler) -> Callable[[], None]:
    """Add a handler to a module, and return what takes it away again."""
    own = module.__dict__
    chain: _Chain | None = own.get(CHAIN)
    if chain is None:
        chain = own[CHAIN] = _Chain(module)
        before = own.get("forward")  # of the instance, as accelerate gives it one
        seen = own["forward"] = _Seen(module.forward, chain)
        chain.restore = partial(_restore, own, before, seen)
    entry = (layer, handler)
    chain.handlers.append(entry)

    def undo() -> None:
        chain.handlers[:] = [x for x in chain.handlers if x is not entry]
        if not chain.handlers:
            chain.restore()

    return undo


def _restore(own: dict[str, Any], before: Any, seen: _Seen) -> None:
    """Give a module the forward that it had, unless it got another one since."""
    del own[CHAIN]
    if own.get("forward") is not seen:
        return
    if before is None:
        del own["forward"]
    else:
        own["forward"] = before


class _Sdpa(TorchFunctionMode):
    """Lets a chain answer the calls of `F.scaled_dot_product_attention`."""

    def __init__(self, chain: _Chain) -> None:
        super().__init__()
        self.chain = chain

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, chain = kwargs or {}, self.chain
        if func is F.scaled_dot_product_attention:
            return _sdpa_answered(chain, *args, **kwargs)
        if (declared := getattr(func, MARK, None)) is not None:
            return declared.answered(chain.layer, partial(_answered, chain), args, kwargs)
        if func is F.multi_head_attention_forward:
            if kwargs.get("need_weights", True):
                call_of, answer = partial(_of_sdpa, chain.layer), partial(_answered, chain)
                return other_calls.weighted(call_of, answer, *args, **kwargs)
            with self:
                return other_calls.opened(*args, **kwargs)
        return other_calls.traceable(func)(*args, **kwargs)


def _answered(chain: _Chain, call: Call) -> Tensor:
    """Return the output by the handlers of a chain, the last one first."""
    chain.calls += 1
    return _through(chain.handlers, replace(call, is_fast_path_off=chain.is_fast_path_off))


def _through(handlers: Sequence[tuple[Layer, Handler]], call: Call) -> Tensor:
    if not handlers:
        return call.run(call.q, call.k, call.v)
    *inner, (layer, handler) = handlers
    if not inner:
        return handler(replace(call, layer=layer))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _through(inner, replace(call, q=q, k=k, v=v))

    return handler(replace(call, layer=layer, run=run))


def _sdpa_answered(
    chain: _Chain, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *args: Any,
    **options: Any,
) -> Tensor:  # fmt: skip
    """Return the output of a call of SDPA, whose tensors may have any number of axes.

    Handlers are given (B, N, T, H). Tensors (B, T, H) have one head, and what stands before
    (N, T, H) is one batch; the kernel itself gets the axes that the model gave it.
    """
    if query.ndim == 4:
        return _answered(
            chain, _of_sdpa(chain.layer, query, key, value, attn_mask, *args, **options)
        )
    if query.ndim < 2 or not query.ndim == key.ndim == value.ndim:
        # refused by PyTorch, in its own words
        return F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **options)
    lead = query.shape[:-2]  # (..., N), or (B,) or () where there are no heads
    call = _of_sdpa(chain.layer, query, key, value, attn_mask, *args, **options)
    own_run = call.run

    def four(x: Tensor) -> Tensor:
        return x.flatten(0, -4) if x.ndim > 4 else x.reshape(-1, 1, *x.shape[-2:])

    def own(x: Tensor) -> Tensor:
        if len(lead) > 1:  # `watch` gives one entry of the batch
            return x.unflatten(0, lead[:-1]) if x.shape[0] == math.prod(lead[:-1]) else x
        return x[:, 0] if lead else x[0, 0]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = own_run(own(q), own(k), own(v))
        return out if out.ndim == 4 else four(out)

    mask = call.mask
    if mask is not None and mask.ndim > 2:
        mask = four(mask.expand(*lead, *mask.shape[-2:]))
    q, k, v = map(four, (call.q, call.k, call.v))
    return own(
        _answered(chain, replace(call, q=q, k=k, v=v, mask=mask, has_heads=query.ndim > 3, run=run))
    )


def _of_sdpa(
    layer: Layer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """Return the call that the arguments of `F.scaled_dot_product_attention` make."""
    width = query.shape[-1]
    q, k, v, mask = (_autocast(x) for x in (query, key, value, attn_mask))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        other = None if scale is None and q.shape[-1] == width else used
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=other,
            enable_gqa=enable_gqa,
        )

    used = 1.0 / math.sqrt(width) if scale is None else scale
    assert q is not None and k is not None and v is not None
    return Call(
        layer=layer,
        q=q,
        k=k,
        v=v,
        mask=mask,
        is_causal=is_causal,
        scale=used,
        dropout=dropout_p,
        run=run,
    )


def _autocast(x: Tensor | None) -> Tensor | None:
    """Return a tensor in the type in which autocast gives it to the kernel."""
    if x is None or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def before_forward(model: nn.Module, begin: Callable[[], None]) -> Callable[[], None]:
    """Call `begin` before every forward of a model, and return what ends that.

    A hook of a module that was compiled in place would be compiled with it, so its compiled call is
    wrapped instead.
    """
    compiled = model.__dict__.get("_compiled_call_impl")
    if compiled is None:
        hook = model.register_forward_pre_hook(lambda module, args: begin())
        return hook.remove

    @wraps(compiled)
    def told(*args: Any, **kwargs: Any) -> Any:
        begin()
        return compiled(*args, **kwargs)

    model.__dict__["_compiled_call_impl"] = told

    def undo() -> None:
        if model.__dict__.get("_compiled_call_impl") is told:
            model.__dict__["_compiled_call_impl"] = compiled

    return undo


def kernel_chosen(call: Call, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Return the name of the kernel that SDPA takes for these tensors of a call, as SDPBackend has.

    None where PyTorch does not tell, or the call is none of SDPA's.
    """
    choice = getattr(torch, "_fused_sdp_choice", None)
    if choice is None or call.implementation != "sdpa":
        return None
    number = choice(
        q, k, v, call.mask, call.dropout, call.is_causal, scale=call.scale,
        enable_gqa=q.ndim == 4 and k.shape[1] != q.shape[1],
    )  # fmt: skip
    return str(SDPBackend(number).name)
