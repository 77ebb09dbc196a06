"""Running a function of PyTorch again: writes in place, memory that is shared, and autocast."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundscope.operations.models.tape import Runner, leaves, mapped

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


def put_places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return x with numbers of y in some places: (x, y, places in x, places in y)."""
    x, y, in_x, in_y = args
    changed = x.detach().clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    flat[torch.tensor(in_x)] = y.reshape(-1)[torch.tensor(in_y)].to(x.dtype)
    return [changed]


def autocast(
    kind: str, dtype: torch.dtype, run: Runner, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Run a function as it ran under autocast."""
    with torch.autocast(kind, dtype, cache_enabled=False):
        return run(args, kwargs)


def writes(function: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function writes into its first argument, by its name or by `inplace=`."""
    if kwargs.get("inplace") is True:
        return True
    last = function.rpartition(".")[2]
    return last == "__setitem__" or (last.endswith("_") and not last.endswith("__"))


def run_again(
    func: Callable[..., Any],
    written: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Run a function again, on copies of the arguments into which it writes."""
    number = -1

    def copied(x: Any) -> Any:
        nonlocal number
        number += isinstance(x, Tensor)
        return x.clone() if isinstance(x, Tensor) and number in written else x

    args, kwargs = mapped(copied, (tuple(args), dict(kwargs))) if written else (args, kwargs)
    with torch.no_grad():
        out = func(*args, **kwargs)
    outputs = [x for x in leaves(out) if isinstance(x, Tensor)]
    given = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor)]
    return outputs + [given[i] for i in written if all(given[i] is not x for x in outputs)]
