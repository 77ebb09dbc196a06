"""One small module for each library whose attention can be called; nothing of a library is imported before its kernel runs.

An adapter takes `Inputs` and returns `Outputs`. Here: calls and layouts. Not here: arithmetic, or what a result means.
"""

import importlib
from collections.abc import Callable

from roundscope.experiments.kernels.outputs import Inputs, Outputs

Kernel = Callable[[Inputs], Outputs]

ADAPTERS = {  # name -> module here, function
    "sdpa-flash": ("torch_sdpa", "flash"),
    "sdpa-efficient": ("torch_sdpa", "efficient"),
    "sdpa-cudnn": ("torch_sdpa", "cudnn"),
    "sdpa-math": ("torch_sdpa", "math"),
    "flex": ("torch_flex", "compiled"),
    "eager": ("transformers_eager", "eager"),
    "jax-xla": ("jax_nn", "xla"),
    "jax-cudnn": ("jax_nn", "cudnn"),
    "pallas": ("jax_pallas", "mha"),
    "tokamax-triton": ("jax_tokamax", "triton"),
    "tokamax-mosaic": ("jax_tokamax", "mosaic"),
    "tokamax-chunked": ("jax_tokamax", "chunked"),
}


def kernel(name: str) -> Kernel:
    """The adapter of that name, or of a user's `module:function`.

    Raises:
        ValueError: the name is neither.
    """
    if name in ADAPTERS:
        module, function = ADAPTERS[name]
        return getattr(importlib.import_module(f"{__name__}.{module}"), function)
    if ":" in name:
        from roundscope.experiments.kernels.adapters.user import user_kernel

        return user_kernel(name)
    raise ValueError(f"kernel={name}: must be one of {', '.join(ADAPTERS)}, or module:function")
