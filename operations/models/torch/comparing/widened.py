"""`Widened`: functions of PyTorch, computed in another type than the code says.

A function that runs within it gets every floating-point tensor in one type, such as float64, and
every type that it is told is that one: `x.float()`, `x.to(torch.bfloat16)` and
`softmax(x, dtype=torch.float32)` round nothing then. So the code of a model, which casts where its
author wanted, is the formula that it stands for.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from roundscope.operations.models.tape import leaves, mapped

_CASTS = {Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.double}


def _grouped(a: Tensor, b: Tensor, offs: Tensor | None = None, **_: Any) -> Tensor:
    """Return the products of groups of rows with a matrix for each, as of experts: rows (R, F), of
    which group g ends before offs[g], and matrices (groups, F, G).
    """
    if a.dim() != 2 or b.dim() != 3 or offs is None:
        raise ValueError("a grouped product of other shapes than rows and a matrix for each group")
    ends = [0, *offs.tolist()]
    parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(pairwise(ends))]
    return torch.cat([*parts, a.new_zeros(len(a) - ends[-1], b.shape[2])])


# functions that have no kernel in binary64, each with one that computes the same
STAND_INS: dict[Any, Callable[..., Any]] = {
    getattr(place, name): _grouped
    for place, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
    if hasattr(place, name)
}


class Widened(TorchFunctionMode):
    """Computes every function within it in one type.

    Args:
        dtype: The type.
        stands_for: Tensors in the places of others, by the identity of these, such as parameters.
            Those that were read are in `used`.
    """

    def __init__(self, dtype: torch.dtype, stands_for: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.dtype, self.stands_for = dtype, stands_for
        self.used: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = mapped(self._widened, (tuple(args), dict(kwargs or {})))
        func = STAND_INS.get(func, func)
        out = func(*args, **kwargs) if func not in _CASTS else args[0].to(self.dtype)
        if isinstance(out, Tensor):
            return self._widened(out) if self._is_narrow(out) else out
        is_narrow = any(isinstance(x, Tensor) and self._is_narrow(x) for x in leaves(out))
        return mapped(self._widened, out) if is_narrow else out

    def _is_narrow(self, x: Tensor) -> bool:
        return x.is_floating_point() and x.dtype != self.dtype

    def _widened(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            is_float = isinstance(x, torch.dtype) and x.is_floating_point
            return self.dtype if is_float else x
        if id(x) in self.stands_for:
            self.used.add(id(x))
            return self.stands_for[id(x)]
        return x.to(self.dtype) if self._is_narrow(x) else x
