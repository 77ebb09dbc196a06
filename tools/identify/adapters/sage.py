"""SageAttention 1 (package sageattention), with q and k in INT8 and P V in FP16, by Triton."""

from sageattention import sageattn
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called


def int8(x: Inputs) -> Outputs:
    """Call the kernel, which subtracts the mean of k in place and has no gradients."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = sageattn(q, k.clone(), v, is_causal=x.is_causal, sm_scale=x.scale)
        return out

    return called(attention, x, backward=False)
