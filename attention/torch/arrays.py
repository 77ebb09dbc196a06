"""Tensors of PyTorch on a CPU as arrays of NumPy, and back, without a change of a bit.

The layouts differ: a tensor is (B, N, T, H) as in SDPA, an array (B, T, N, H) as in `attend`.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

# the types that attention takes, with those of NumPy and JAX
NUMPY = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float16: np.dtype(np.float16),
}
TORCH = {numpy: torch for torch, numpy in NUMPY.items()}


def numpy_of(x: Tensor) -> np.ndarray:
    """Return a tensor on a CPU as an array of the same shape, memory and strides."""
    x = x.detach()
    if x.dtype is torch.bfloat16:  # which neither library converts
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def tensor_of(x: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
    """Return a new array as a contiguous tensor, with its numbers rounded to `dtype`.

    The rounding is to nearest even, and to infinity beyond the largest number, as of JAX.
    """
    with np.errstate(over="ignore"):
        x = x if dtype is None else x.astype(NUMPY[dtype], copy=False)
    x = np.asarray(x, order="C")  # np.ascontiguousarray gives a single number an axis
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def turned(x: Any) -> Any:
    """Return an array with its second and third axis exchanged, as one layout is of the other."""
    return x.swapaxes(1, 2)
