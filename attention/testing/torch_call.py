"""Calls of a function of torch tensors (B, N, T, H) in 16 bits, forward and backward."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def tensor(x: np.ndarray, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return a float32 array (B, T, N, H) as a contiguous tensor (B, N, T, H) on the device."""
    moved = np.ascontiguousarray(x.swapaxes(1, 2))
    return torch.from_numpy(moved).to(device(), dtype)


def array(x: Tensor) -> np.ndarray:
    """Return a tensor (B, N, T, H) as a float32 array (B, T, N, H)."""
    return np.ascontiguousarray(x.detach().float().cpu().numpy().swapaxes(1, 2))


def called(
    attention: Attention, x: Inputs, lse: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Outputs:
    """Return the outputs of one call, and the gradients of its three arguments."""
    q, k, v = (tensor(a, dtype).requires_grad_() for a in (x.q, x.k, x.v))
    out = attention(q, k, v)
    gradients = torch.autograd.grad(out, (q, k, v), tensor(x.do, dtype).to(out.dtype))
    dq, dk, dv = map(array, gradients)
    sums = None if lse is None else lse.float().cpu().numpy()
    return Outputs(out=array(out), lse=sums, dq=dq, dk=dk, dv=dv)
