"""What a replay does with tensors of PyTorch: `operations.models.tape.Arrays`."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from roundscope.attention.torch.arrays import numpy_of
from roundscope.operations.models.tape import Span, within

_BYTES = {
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}


def dtype_named(x: Tensor) -> str:
    """Return the name of a tensor's type, such as "bfloat16"."""
    return str(x.dtype).removeprefix("torch.")


class TensorArrays:
    """The functions of `Arrays`, on tensors."""

    def cast(self, x: Any, dtype: str) -> Any:
        kind = getattr(torch, dtype)
        return x.to(kind) if x.is_floating_point() and kind.is_floating_point else x

    def part(self, x: Any, axis: int, start: int, length: int) -> Any:
        return x.narrow(axis, start, length).contiguous()

    def put(self, x: Any, spans: Sequence[Span], part: Any) -> Any:
        x = x.clone()
        x[within(x.dim(), spans)] = part
        return x

    def shaped(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.reshape(shape)

    def joined(self, parts: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(parts), axis)

    def nudged(self, x: Any, seed: int) -> Any:
        if not x.is_floating_point() or x.dtype in _BYTES:
            return x
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        x = x.contiguous()
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.rand(x.shape, generator=generator) < 1 / 64
        up = torch.rand(x.shape, generator=generator) < 0.5
        step = torch.where(up, 1, -1).to(bits) * chosen.to(bits)
        moved = (x.view(bits) + step.to(x.device)).view(x.dtype)
        return torch.where(torch.isfinite(moved) & (x != 0), moved, x)

    def shifted(self, x: Any, new: Any, old: Any) -> Any:
        moved = (x.double() + (new.double() - old.double())).to(new.dtype)
        return torch.where(x == old, new, moved)

    def numpy(self, x: Any) -> np.ndarray:
        x = x.detach().cpu().contiguous()
        if x.dtype in _BYTES:
            codes: np.ndarray = x.view(torch.uint8).numpy()
            return codes.view(_BYTES[x.dtype])
        return numpy_of(x)
