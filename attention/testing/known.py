"""`known_of`: what is known already of a kernel that a comparison finds less good than its plan."""

import sys

from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.foreign.user import Kernel

CPU_FLASH = (
    "this is PyTorch's flash kernel for CPUs, of which it is known: it is no FlashAttention-2,"
    " its dK and dV are less exact, and on some inputs its output is too long"
    ' (docs/findings/kernels-check.md, "One kernel is not as good as its name"). On a GPU F.'
    "scaled_dot_product_attention is another kernel"
)


def known_of(kernel: Kernel, x: Inputs) -> str:
    """Return what is known of a kernel, by what it calls in PyTorch on these inputs; "" if nothing.

    It is called once more. A kernel that raises an error then has nothing that is known.
    """
    if "torch" not in sys.modules:
        return ""
    from roundscope.attention.testing.foreign.torch_call import operators_of

    try:
        names = operators_of(lambda: kernel(x))
    except Exception:  # whatever a library raises
        return ""
    is_cpu_flash = any("flash_attention_for_cpu" in name for name in names)
    return CPU_FLASH if is_cpu_flash else ""
