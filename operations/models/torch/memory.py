"""Running a function of PyTorch again: writes in place, memory that is shared, and autocast."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundscope.operations.models.tape import leaves, mapped

SHARED = "memory shared with what was written"  # the function of an entry that `put_places` runs


def shared_places(x: Tensor, y: Tensor) -> tuple[list[int], list[int]]:
    """Return which numbers of two tensors are the same memory, by their numbers in either.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, 3)
        >>> shared_places(x, x[:, 1])
        ([1, 4], [0, 1])
    """
    own, other = _addresses(x), _addresses(y)
    _, in_own, in_other = np.intersect1d(own, other, return_indices=True)
    return in_own.tolist(), in_other.tolist()


def _addresses(x: Tensor) -> np.ndarray:
    """Return where the numbers of a tensor are, in units of its type, in their order."""
    address = np.full((1,) * x.dim(), x.storage_offset())
    for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        shape = [1] * x.dim()
        shape[axis] = size
        address = address + (np.arange(size) * stride).reshape(shape)
    return address.reshape(-1)


def put_places(
    args: Sequence[Any], kwargs: Mapping[str, Any], grad: bool = False, is_plain: bool = False
) -> list[Any]:
    """Return x with numbers of y in some places: (x, y, places in x, places in y)."""
    x, y, in_x, in_y = args
    with torch.set_grad_enabled(grad):
        flat = x.clone(memory_format=torch.contiguous_format).view(-1)
        flat[torch.tensor(in_x)] = y.reshape(-1)[torch.tensor(in_y)].to(x.dtype)
        return [flat.view(x.shape)]


def writes(function: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function writes into its first argument, by its name or by `inplace=`."""
    if kwargs.get("inplace") is True:
        return True
    last = function.rpartition(".")[2]
    return last == "__setitem__" or (last.endswith("_") and not last.endswith("__"))


def casts() -> dict[str, torch.dtype]:
    """Return the type to which `torch.autocast` casts on each kind of device where it is on."""
    kinds = (kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds}


def run_again(
    func: Callable[..., Any],
    written: Sequence[int],
    autocast: Mapping[str, torch.dtype],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    grad: bool = False,
    is_plain: bool = False,
) -> list[Any]:
    """Run a function again, on copies of the arguments into which it writes.

    Args:
        func: The function.
        written: The numbers of these arguments.
        autocast: The casts of `torch.autocast` where it ran.
        args: Its arguments.
        kwargs: Its arguments by name.
        grad: Whether autograd keeps what it needs for gradients.
        is_plain: Whether it runs without these casts.
    """
    number = -1

    def copied(x: Any) -> Any:
        nonlocal number
        number += isinstance(x, Tensor)
        return x.clone() if isinstance(x, Tensor) and number in written else x

    args, kwargs = mapped(copied, (tuple(args), dict(kwargs))) if written else (args, kwargs)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype in autocast.items() if not is_plain else ():
            stack.enter_context(torch.autocast(kind, dtype))
        out = func(*args, **kwargs)
    outputs = (
        [out] if isinstance(out, Tensor) else [x for x in leaves(out) if isinstance(x, Tensor)]
    )
    if not written:
        return outputs
    given = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor)]
    return outputs + [given[i] for i in written if all(given[i] is not x for x in outputs)]
