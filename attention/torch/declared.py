"""`attention_function`: attention that a model writes out by hand, named so that it can be seen.

A fused kernel has a name, a product of matrices has none: nobody can tell from outside which `@`
and `softmax` are attention. So the function that computes them is marked. Within a layer whose
calls are intercepted, the marked function gives itself to the interception as SDPA does; elsewhere
it is the plain function.

What the mark says is checked where the function is seen first: its output is compared with
softmax(scale Q K^T + mask) V in binary64. A function that hides keys or scales otherwise than the
mark says is refused, and not taken for what it is not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from roundscope.attention.models.selection import Layer
from roundscope.attention.torch import flex
from roundscope.attention.torch.call import Call
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown

MARK = "_roundscope_declared"  # the attribute of a marked function
PARAMETERS = {
    "q": ("q", "query", "queries", "query_states"),
    "k": ("k", "key", "keys", "key_states"),
    "v": ("v", "value", "values", "value_states"),
    "mask": ("mask", "attn_mask", "attention_mask", "bias", "attn_bias"),
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "scaling", "softmax_scale"),
    "dropout": ("dropout_p", "dropout"),
}
"""The names that a parameter of a marked function may have."""
OF_FLEX = ("score_mod", "block_mask")  # parameters whose values are programs
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 1e-2}  # else that of BF16
OF_BF16 = 3e-2
WRITTEN_OUT = "a marked function"  # Call.implementation
Function = Callable[..., Any]


@overload
def attention_function(function: Function) -> Function: ...
@overload
def attention_function(
    *,
    is_causal: bool = ...,
    scale: float | None = ...,
    mask: Callable[..., Tensor | None] | None = ...,
    layout: Literal["BNTH", "BTNH"] = ...,
    tolerance: float | None = ...,
) -> Callable[[Function], Function]: ...
@known_arguments
def attention_function(
    function: Function | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    mask: Callable[..., Tensor | None] | None = None,
    layout: Literal["BNTH", "BTNH"] = "BNTH",
    tolerance: float | None = None,
) -> Any:
    """Mark a function that computes attention by hand, so that `capture`, `use` and others see it.

    Decorate the function, or a method of the module: its parameters tell which is which, by the
    names q or query, k or key, v or value, and where it has them mask (attn_mask, attention_mask,
    bias), is_causal, scale and dropout_p. It returns the output, or a tuple that begins with it,
    whose others are None where plans compute the output in its place.
    A module that calls it is a layer of `attention_layers`, and outside of these functions nothing
    changes. At its first call in an intercepted layer its output is compared with the textbook's
    attention, so that a function which does something else is refused.

    The function of another library is marked from outside:
    ``its.attend = attention_function(its.attend)``.
    `flex_attention`, compiled or not, may be marked itself: a
    score_mod that adds to the score is evaluated to a bias, one that is a softcap to that, and a
    block_mask to booleans (`attention.torch.flex`); others are refused. `watch` and `correct` call
    the function with a feature more. If it takes the scale from the number of features, give it a
    parameter `scale`.

    Args:
        function: The function, where it is not used as `@attention_function(...)`.
        is_causal: Whether the function itself hides the keys s > t of query t.
        scale: The factor of the scores in the function; 1 / sqrt(H) by default. A parameter of the
            function named so comes first.
        mask: A function of the same arguments that returns the mask, where the function makes its
            own: booleans, True where a query sees a key, or numbers that are added to the scores.
        layout: "BNTH" for (batch, heads, tokens, features), or "BTNH".
        others: None; any is refused with the argument that may be meant.
        tolerance: The relative rms error of the output at which it counts as another function: by
            default 1e-5 in float64, 1e-3 in float32, 1e-2 in float16 and 3e-2 in bfloat16. A
            function that rounds to fewer bits needs more.

    Returns:
        The marked function, or what marks one.

    Raises:
        TypeError: It is no function, or has no q, k and v.
        ValueError: Another layout. In a forward: its output is not that attention.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from roundscope.torch import attention_function, use
        >>> @attention_function(scale=1.0)
        ... def attend(q, k, v):
        ...     return (q @ k.mT).softmax(-1) @ v
        >>> class Attention(nn.Module):
        ...     def forward(self, x):
        ...         return attend(x, x, x)
        >>> model, x = nn.Sequential(Attention()), torch.randn(1, 2, 4, 8)
        >>> with use(model, "all:bf16"):
        ...     out = model(x)
        >>> torch.equal(out, model(x)), bool((out - model(x)).abs().max() < 0.1)
        (False, True)
    """
    if layout not in ("BNTH", "BTNH"):
        raise ValueError(f"layout={shown(layout)}: must be 'BNTH' or 'BTNH'")

    def marked(own: Any) -> Any:
        if not callable(own):
            raise TypeError(f"function: {shown(own)}, must be a function of q, k and v")
        declared = _Declared(own, is_causal, scale, mask, layout == "BTNH", tolerance)

        @wraps(own)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tensors = tuple(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
            if has_torch_function(tensors):
                return handle_torch_function(wrapped, tensors, *args, **kwargs)
            return own(*args, **kwargs)

        setattr(wrapped, MARK, declared)
        return wrapped

    return marked if function is None else marked(function)


class _Declared:
    """What is said of a marked function, and whether it has been checked."""

    def __init__(
        self,
        function: Function,
        is_causal: bool,
        scale: float | None,
        mask: Callable[..., Tensor | None] | None,
        is_turned: bool,
        tolerance: float | None,
    ) -> None:
        self.function, self.signature = function, inspect.signature(function)
        self.is_causal, self.scale, self.mask = is_causal, scale, mask
        self.is_turned, self.tolerance, self.is_checked, self.more = is_turned, tolerance, False, 0
        named = self.signature.parameters
        self.names = {
            what: name
            for what, words in PARAMETERS.items()
            if (name := next((w for w in words if w in named), None)) is not None
        }
        if missing := [what for what in ("q", "k", "v") if what not in self.names]:
            raise TypeError(
                f"function: {self.name}{self.signature} has no parameter {', '.join(missing)}; name"
                " its tensors q, k and v, or query, key and value"
            )

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", shown(self.function))

    def answered(
        self,
        layer: Layer,
        answer: Callable[[Call], Tensor],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return what the function returns for these arguments, with the output by `answer`."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        others: list[Any] = []  # what it returned behind the output
        call = self._call(layer, bound, others)
        if not (self.is_checked or call.dropout):
            self._check(call)
            self.is_checked, self.more = True, len(others)
            others.clear()
        out = self._turned(answer(call))
        others = others or [None] * self.more  # where it did not run
        return (out, *others) if others else out

    def _turned(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2) if self.is_turned else x

    def _call(self, layer: Layer, bound: inspect.BoundArguments, others: list[Any]) -> Call:
        """Return the call that arguments make; its `run` puts what else is returned in `others`."""
        where = f"layer {layer.number} ({layer.name}): {self.name}"
        given = {what: bound.arguments[name] for what, name in self.names.items()}
        for what in ("q", "k", "v"):
            x = given[what]
            if not isinstance(x, Tensor) or x.ndim != 4:
                found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(
                    f"{where}: {what} is {found}, must be a tensor (batch, heads, tokens,"
                    " features); give it these axes before the marked function"
                )
        q, k, v = (self._turned(given[what]) for what in ("q", "k", "v"))
        width = q.shape[-1]
        named = (x for x in (given.get("scale"), self.scale) if x is not None)
        scale = float(next(named, 1.0 / math.sqrt(width)))
        score_mod, block_mask = (bound.arguments.get(name) for name in OF_FLEX)
        dense = flex.Dense()
        if self.mask is None:
            dense = flex.dense(score_mod, block_mask, q, k, where)
            mask = given.get("mask") if dense.mask is None else dense.mask
        else:
            mask = self.mask(*bound.args, **bound.kwargs)
        causal = self.is_causal if given.get("is_causal") is None else given["is_causal"]

        def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            tensors = zip(("q", "k", "v"), (q, k, v), strict=True)
            again = self.signature.bind(*bound.args, **bound.kwargs)
            again.apply_defaults()
            again.arguments |= {self.names[what]: self._turned(x) for what, x in tensors}
            if "scale" in self.names and q.shape[-1] != width:
                again.arguments[self.names["scale"]] = scale
            found = self.function(*again.args, **again.kwargs)
            others[:] = found[1:] if isinstance(found, tuple) else ()
            out: Tensor = self._turned(found[0] if isinstance(found, tuple) else found)
            return out

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.shape[-1] != width and "scale" not in self.names and not is_fixed():
                raise ValueError(
                    f"{where} takes its scale from the number of features, and is called with more"
                    " of them here; give it a parameter scale=None that replaces its own"
                )
            return own(q, k, v)

        def is_fixed() -> bool:
            """Return whether the scale stays where as many zeros are put behind the features."""
            with torch.no_grad():
                plain = [x.detach() for x in (q, k, v)]
                wide = own(*(torch.nn.functional.pad(x, (0, x.shape[-1])) for x in plain))
                return _error(wide[..., : v.shape[-1]], own(*plain)) < self._limit(q)

        return Call(
            layer=layer,
            q=q,
            k=k,
            v=v,
            mask=mask,
            is_causal=bool(causal),
            scale=scale,
            dropout=float(given.get("dropout") or 0.0),
            softcap=dense.softcap,
            implementation=WRITTEN_OUT,
            run=run,
        )

    def _limit(self, q: Tensor) -> float:
        return TOLERANCE.get(q.dtype, OF_BF16) if self.tolerance is None else self.tolerance

    def _check(self, call: Call) -> None:
        """Raise ValueError unless the function's output is the attention that it is said to be."""
        with torch.no_grad():
            # without gradients, which flex_attention refuses on a CPU
            own = call.run(call.q.detach(), call.k.detach(), call.v.detach())
            error = _error(own, _textbook(call, call.is_causal, call.scale))
            if error < self._limit(call.q):
                return
            tried = [
                f"is_causal={is_causal}, scale={scale:.6g}"
                for is_causal in (False, True)
                for scale in dict.fromkeys((call.scale, call.q.shape[-1] ** -0.5, 1.0))
                if _error(own, _textbook(call, is_causal, scale)) < self._limit(call.q)
            ]
        repair = (
            f"with {tried[0]} it is: say so in attention_function"
            if tried
            else "if it hides keys or adds to the scores, say so by mask= of attention_function, or"
            " give it the mask as an argument; if it rounds to few bits, by tolerance="
        )
        raise ValueError(
            f"layer {call.layer.number} ({call.layer.name}): {self.name} is not"
            f" softmax(scale q k^T{'' if call.mask is None else ' + mask'}) v with"
            f" is_causal={call.is_causal}, scale={call.scale:.6g}: its output differs by"
            f" {error:.2g} of its size; {repair}"
        )


def _textbook(call: Call, is_causal: bool, scale: float) -> Tensor:
    """Return softmax(scale Q K^T + mask) V in binary64, NaN in rows that see no key."""
    q, k, v = (x.double() for x in (call.q, call.k, call.v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = scale * q @ k.mT
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.mask is not None:
        is_seen = call.mask.dtype == torch.bool
        scores = scores.masked_fill(~call.mask, -torch.inf) if is_seen else scores + call.mask
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the relative rms error over rows that see a key; infinite if there are other shapes.

    Numbers that are not finite in the function alone make it infinite or NaN, which is above every
    limit.
    """
    if found.shape != expected.shape:
        return math.inf
    rows = expected.isfinite().all(-1)
    off, size = (found.double() - expected)[rows].norm(), expected[rows].double().norm()
    return float(off / size) if size else float(off)
