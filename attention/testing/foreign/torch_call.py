"""Calls of a function of torch tensors, forward and backward."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roundscope.attention.testing.calls import (
    Inputs,
    Outputs,
    check_kept,
    first_of,
    parts_of,
    sums_of,
)
from roundscope.emu.testing.foreign import ForeignError

if TYPE_CHECKING:
    from roundscope.attention.testing.foreign.user import Convention

Attention = Callable[[Tensor, Tensor, Tensor], Any]


def device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def tensor(x: np.ndarray, dtype: torch.dtype = torch.bfloat16, layout: str = "BNTH") -> Tensor:
    """Return a copy of a float32 array (B, T, N, H) on the device, contiguous in the layout."""
    moved = np.array(x.swapaxes(1, 2) if layout == "BNTH" else x, order="C")
    return torch.from_numpy(moved).to(device(), dtype)


def array(x: Tensor, layout: str = "BNTH") -> np.ndarray:
    """Return a tensor of a layout as a float32 array (B, T, N, H)."""
    if not x.is_floating_point():
        raise ForeignError("kernel", f"returned a tensor of {x.dtype}; return real floats")
    if x.ndim != 4:
        raise ForeignError("kernel", f"returned shape {tuple(x.shape)}, must have four axes")
    a = x.detach().float().cpu().numpy()
    return np.ascontiguousarray(a.swapaxes(1, 2) if layout == "BNTH" else a)


def operators_of(call: Callable[[], Any]) -> set[str]:
    """Return the names of the operators of PyTorch that a call runs in this thread."""
    names: set[str] = set()

    class Named(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.add(str(func))
            return func(*args, **(kwargs or {}))

    with Named():  # type: ignore[no-untyped-call]
        call()
    return names


def called(
    attention: Attention,
    x: Inputs,
    lse: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "BNTH",
    backward: bool = True,
) -> Outputs:
    """Return the outputs of one call, and the gradients of its three arguments.

    There are no gradients if they are not wanted, or if PyTorch has none of the function's output.
    Where `lse` is None, that of a function that returns (out, lse) is taken.
    """
    q, k, v = (tensor(a, dtype, layout).requires_grad_(backward) for a in (x.q, x.k, x.v))
    result = attention(q, k, v)
    out: Tensor = first_of(result)
    lse = sums_of(result, x) if lse is None else lse
    sums = None if lse is None else lse.detach().float().cpu().numpy()
    if not out.requires_grad:
        return Outputs(out=array(out, layout), lse=sums)
    gradients = torch.autograd.grad(out, (q, k, v), tensor(x.do, dtype, layout).to(out.dtype))
    dq, dk, dv = (array(g, layout) for g in gradients)
    return Outputs(out=array(out, layout), lse=sums, dq=dq, dk=dk, dv=dv)


def run(function: Callable[..., Any], c: "Convention", x: Inputs) -> Outputs:
    """Return the outputs of a user's function."""
    options, dtype = c.options(x), getattr(torch, c.dtype)
    if x.mask is not None:
        options[c.names["mask"]] = torch.from_numpy(np.ascontiguousarray(x.mask)).to(device())
    if c.is_own_backward:
        q, k, v, do = (tensor(a, dtype, c.layout) for a in (x.q, x.k, x.v, x.do))
        versions = [a._version for a in (q, k, v, do)]
        results = parts_of(function(q, k, v, **options | {c.names["do"]: do}))
        check_kept(versions, (a._version for a in (q, k, v, do)))
        out, dq, dk, dv = (array(a, c.layout) for a in results)
        return Outputs(out=out, dq=dq, dk=dk, dv=dv)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        versions = [a._version for a in (q, k, v)]
        result = function(q, k, v, **options)
        first_of(result)
        check_kept(versions, (a._version for a in (q, k, v)))
        return result

    return called(attention, x, dtype=dtype, layout=c.layout, backward=c.backward)
