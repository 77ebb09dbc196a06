"""The code that arXiv 2510.04212 released (ucker/why-low-precision-training-fails).

It is read from a folder that has it. Its model calls `FlashAttentionFunction.apply(q, k, v, None,
True, 512, 512)` under BF16 autocast, and its training compiles the model by default.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called, device
from roundscope.tools.identify.adapters.files import module_of


def released(folder: Path, bucket: int = 512, compile: bool = False) -> Callable[[Inputs], Outputs]:
    """Return the kernel of the released code.

    Args:
        folder: the folder of its attention.py.
        bucket: rows and keys of a tile.
        compile: whether torch.compile compiles it, as its training does.

    Raises:
        FileNotFoundError: there is no attention.py.
    """
    apply = module_of("released_attention", folder / "attention.py").FlashAttentionFunction.apply

    def run(x: Inputs) -> Outputs:
        if abs(x.scale * x.q.shape[-1] ** 0.5 - 1) > 1e-6:
            raise ValueError(f"scale={x.scale}: this kernel's is {x.q.shape[-1] ** -0.5}")

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = apply(q, k, v, None, x.is_causal, bucket, bucket)
            return out

        torch._dynamo.reset()  # after eight shapes it would stop compiling
        function = torch.compile(attention, dynamic=False) if compile else attention
        with torch.autocast(device(), torch.bfloat16):
            return called(function, x)

    return run


def eager(folder: Path) -> Callable[[Inputs], Outputs]:
    """Return the code run as it is written, on tiles of 512."""
    return released(folder)


def compiled(folder: Path) -> Callable[[Inputs], Outputs]:
    """Return the code as its training runs it, on tiles of 512."""
    return released(folder, compile=True)
