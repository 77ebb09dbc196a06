"""The attention of Triton's tutorial 06, read from a file that has it.

The file is python/tutorials/06-fused-attention.py of triton-lang/triton. The kernel computes in
FP16, forward and backward. Its autotuner picks tiles by their time; here they are those of its own
tests: 128 queries, 64 keys.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called
from roundscope.tools.identify.adapters.files import module_of


def tutorial(file: Path) -> Callable[[Inputs], Outputs]:
    """Return the kernel, whose inputs are rounded to FP16.

    Args:
        file: the tutorial.

    Raises:
        FileNotFoundError: there is no such file.
    """
    module = module_of("triton_tutorial_attention", file)
    tuned = module._attn_fwd.configs

    def run(x: Inputs) -> Outputs:
        tiles = {"BLOCK_M": 128, "BLOCK_N": min(64, x.q.shape[-1])}
        module._attn_fwd.configs = [
            c for c in tuned if c.kwargs == tiles and c.num_warps == 4 and c.num_stages == 2
        ]

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = module.attention(q, k, v, x.is_causal, x.scale, False)
            return out

        return called(attention, x, dtype=torch.float16)

    return run
