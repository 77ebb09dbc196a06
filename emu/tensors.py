"""Tensors of PyTorch for functions of arrays: `takes_tensors`.

A tensor on a CPU enters as a NumPy array of the same memory, one on a GPU as a JAX array by DLPack,
and what a function returns leaves as a tensor of the same device. PyTorch is not imported: who
passes a tensor has done so.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from roundscope.emu.numbers import check_array

if TYPE_CHECKING:
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def is_tensor(x: Any) -> bool:
    """Return whether x is a tensor of PyTorch."""
    return "torch" in sys.modules and isinstance(x, getattr(sys.modules["torch"], "Tensor", ()))


def takes_tensors(function: Function) -> Function:
    """Return a function of arrays that takes tensors too, and then returns tensors.

    The tensors of a call are on one device, and so are the results that are arrays. Other arguments
    and results stay as they are.
    """
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def taking(*args: Any, **named: Any) -> Any:
        called = {**dict(zip(names, args, strict=False)), **named}
        tensors = {name: x for name, x in called.items() if is_tensor(x)}
        if not tensors:
            return function(*args, **named)
        _check(tensors, named)
        given = list(tensors.values())
        with _wide(given):
            results = function(
                *(_array(x) for x in args), **{name: _array(x) for name, x in named.items()}
            )
            return _tensors(results, given[0])

    return cast(Function, taking)


def _check(tensors: dict[str, Tensor], named: dict[str, Any]) -> None:
    """Raise TypeError or ValueError for tensors that no function takes."""
    if named.get("out") is not None:
        raise ValueError("out: of NumPy arrays alone; for tensors, y.copy_(round_to(x, ...))")
    torch = sys.modules["torch"]
    first = next(iter(tensors.values()))
    for name, x in tensors.items():
        if x.device != first.device:
            raise ValueError(f"tensors on {first.device} and {x.device}; move one with .to()")
        check_array(name, x)
        if not x.is_floating_point():
            raise TypeError(
                f"{name}: dtype {x.dtype}, must be a tensor of floats; {name}.float() makes one"
            )
        if x.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"{name}: on {x.device}, must be on a CPU or a CUDA device; {name}.cpu() is"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name}: requires a gradient, and rounding has none that is of use; pass"
                f" {name}.detach(), or"
                " call under torch.no_grad()"
            )


def _array(x: Any) -> Any:
    """Return a tensor as an array, in float32 if its type is narrower; anything else as it is."""
    if not is_tensor(x):
        return x
    x = x.detach().resolve_conj().resolve_neg()
    x = x if x.element_size() >= 4 else x.float()  # exact
    if x.device.type == "cpu":
        return x.numpy()
    import jax

    return jax.dlpack.from_dlpack(x.contiguous())


def _tensors(results: Any, like: Tensor) -> Any:
    """Return the arrays of results as tensors on the device of one of the arguments."""
    if isinstance(results, tuple):
        return tuple(_tensors(x, like) for x in results)
    torch = sys.modules["torch"]
    if isinstance(results, (np.ndarray, np.floating)):
        return torch.from_numpy(np.asarray(results)).to(like.device)
    if "jax" not in sys.modules or not isinstance(results, sys.modules["jax"].Array):
        return results
    # who waits lets PyTorch reuse the memory that JAX has read
    return torch.utils.dlpack.from_dlpack(results.block_until_ready())


def _wide(given: list[Tensor]) -> Any:
    """Return a context in which JAX has 64-bit types, for tensors on a GPU."""
    if given[0].device.type == "cpu":
        return nullcontext()
    import jax

    return jax.enable_x64(True)
