"""One small module for each library whose attention can be called.

No library is imported before its kernel runs. An adapter takes `Inputs` and returns `Outputs`: it
contains calls and layouts, no arithmetic and no judgment of results.
"""

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from roundscope.attention.testing.foreign.user import Kernel, called_here, kernel_of
from roundscope.emu.errors import Problem

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
    "cudnn-fp8": ("cudnn_fp8", "fp8"),
    "cudnn-fp8-s256": ("cudnn_fp8", "fp8_256"),
    "fa3": ("flash_attention_3", "flash"),
    "fa3-fp16": ("flash_attention_3", "half"),
    "fa3-split": ("flash_attention_3", "split"),
    "fa3-fp8": ("flash_attention_3", "fp8"),
    "fa3-fp8-descaled": ("flash_attention_3", "fp8_descaled"),
    "fa4": ("flash_attention_4", "flash"),
    "sage-int8": ("sage", "int8"),
    "tokamax-triton": ("jax_tokamax", "triton"),
    "tokamax-mosaic": ("jax_tokamax", "mosaic"),
    "tokamax-mosaic-stale": ("jax_tokamax", "stale"),
    "tokamax-chunked": ("jax_tokamax", "chunked"),
}

OF_FILES = {  # name -> module here, function of a path, what lies there
    "released-eager": ("released", "eager", "attention.py"),
    "released-compiled": ("released", "compiled", "attention.py"),
    "triton-tutorial": ("triton_tutorial", "tutorial", ""),
}


def plain_name(name: str) -> str:
    """Return the name of a kernel without the path of its code.

    It is "triton-tutorial" for "triton-tutorial:06-fused-attention.py".
    """
    head, _, _ = name.partition(":")
    return head if head in OF_FILES else name


def kernel(name: str) -> Kernel:
    """Return the adapter of a kernel by name.

    The name is one of ADAPTERS, `NAME:PATH` for code that no package has, or `module:function` for
    a user's own.

    Raises:
        ValueError: the name is none of these, or nothing lies at the path.
    """
    head, _, path = name.partition(":")
    if head in OF_FILES:
        module, function, file = OF_FILES[head]
        if not path or not (Path(path) / file).is_file():
            place = "FOLDER" if file else "FILE"
            raise Problem("kernel", name, f"no {file or 'file'} there; give {head}:{place}")
        of_path: Callable[[Path], Kernel] = getattr(_adapter(module), function)
        return partial(called_here, of_path(Path(path)))
    if name in ADAPTERS:
        module, function = ADAPTERS[name]
        adapter: Kernel = getattr(_adapter(module), function)
        return partial(called_here, adapter)
    if path:
        return kernel_of(name)
    known = ", ".join([*ADAPTERS, *(f"{n}:PATH" for n in OF_FILES)])
    raise Problem("kernel", name, f"must be one of {known}, or module:function")


def _adapter(module: str) -> Any:
    return importlib.import_module(f"{__name__}.{module}")
