"""FlashAttention-4 (package flash-attn-4), with kernels for Hopper and Blackwell in CuTe DSL."""

from flash_attn.cute.interface import flash_attn_func
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.torch_call import called


def flash(x: Inputs) -> Outputs:
    """Call the kernel; grouped heads, windows and softcaps are its own."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = (x.window - 1, 0 if x.is_causal else x.window - 1) if x.window else (None, None)
        out = flash_attn_func(
            *(q, k, v),
            softmax_scale=x.scale,
            causal=x.is_causal,
            window_size=window,
            softcap=x.softcap or 0.0,
        )
        only: Tensor = out[0] if isinstance(out, tuple) else out
        return only

    return called(attention, x, layout="BTNH")
