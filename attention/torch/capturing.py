"""Captures what attention is given and returns in a PyTorch model, and writes it to a file."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from roundscope.attention.models.capture_file import (
    Captured,
    choice_given,
    file_given,
    numbers_given,
    write_captures,
)
from roundscope.attention.torch.calls import CHAIN, attention_layers, intercept
from roundscope.attention.torch.recorder import Recorder


@contextmanager
def capture(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    layers: str | int | Sequence[int] = "*",
    heads: Iterable[int] | int | None = None,
    tokens: int | None = None,
    batch: Iterable[int] | int | None = 0,
    steps: Iterable[int] | int | None = 0,
    modules: Iterable[str] | None = None,
) -> Iterator[list[Captured]]:
    """Capture the attention of a model while it runs, and write it to a file at the end.

    The file has q, k, v, the mask, scale, causality and output of each call, and do, dq, dk and dv
    if there was a backward; see `attention.models.capture_file`. `roundscope trace`, `identify` and
    `diagnose` read it. The model's outputs and gradients keep every bit (but a
    `nn.TransformerEncoderLayer` in eval mode, which has a fast path that is not taken meanwhile).

    A forward pass is a call of the model. Where its parts are called without it, a pass begins with
    a layer that was called already. A forward that activation checkpointing repeats in the backward
    is no further pass. If a layer runs several times in a pass, its first call is kept, and a note
    in the file says so. A compiled model runs uncompiled meanwhile, as after
    `torch.compiler.set_stance("force_eager")`: the file has the numbers of the eager model.

    An exception, Ctrl-C included, ends the capture, and what was captured until then is written.

    Args:
        model: Any `nn.Module` whose layers call `F.scaled_dot_product_attention` or an
            implementation of the transformers library.
        path: The safetensors file. Its folder must exist; a file of that name is replaced.
        layers: Which layers: "*" for all, numbers such as "0-3" or [0, 2], or a pattern of the
            paths of modules.
        heads: Numbers of key heads, each with the query heads that share it; None for all.
        tokens: How many of the first tokens. Of a causal call the first queries and keys are kept,
            of another one the first queries with all keys; dk and dv, which sum over all queries,
            are then left out. None for all.
        batch: Numbers of entries of the batch, by default the first; None for all.
        steps: Numbers of forward passes, counted from 0 within the context; by default the first;
            None for all, which are kept in memory until the end.
        modules: Paths of the modules that call attention, where they are not found by their code.

    Yields:
        A list that has the `Captured` calls at the end of the context, by step and layer.

    Raises:
        TypeError: An argument is of another type.
        ValueError: No such layers, heads or batch entries, no tokens, or a path that cannot be
            written.
        RuntimeError: No attention ran.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from roundscope.attention.torch import capture
        >>> class Attention(nn.Module):
        ...     def forward(self, q, k, v):
        ...         return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> model = Attention()
        >>> q, k, v = torch.ones(3, 1, 2, 4, 8, requires_grad=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with capture(model, f"{folder}/qkv.safetensors") as calls:
        ...         model(q, k, v).sum().backward()
        >>> calls[0].is_causal, calls[0].q.shape, calls[0].dq.shape
        (True, (1, 2, 4, 8), (1, 2, 4, 8))
    """
    file = file_given(path)
    recorder = Recorder(choice_given(heads, tokens, batch), numbers_given("steps", steps))
    bare = getattr(model, "_orig_mod", model)
    calls: list[Captured] = []

    def write(remark: str) -> None:
        calls.extend(recorder.captured())
        if calls:
            about = _about(model, recorder.device) | ({"remark": remark} if remark else {})
            write_captures(file, calls, about)

    recorder.is_nested = any(
        module.__dict__.get(CHAIN) is not None
        for module in attention_layers(model, modules).values()
    )
    with ExitStack() as stack:
        own = stack.enter_context(intercept(model, recorder.answer, layers=layers, modules=modules))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        before = bare.register_forward_pre_hook(recorder.begin)
        stack.callback(before.remove)
        stack.callback(bare.register_forward_hook(recorder.end, always_call=True).remove)
        try:
            yield calls
        except BaseException as error:
            write(f"ended by {type(error).__name__}")
            raise
    if not recorder.records:
        raise RuntimeError(f"nothing was captured, and no file was written: {recorder.passed()}")
    remark = recorder.missing(own.layers)
    write(remark)
    if remark:
        warnings.warn(f"{file}: {remark}", stacklevel=3)


def _about(model: nn.Module, device: torch.device) -> dict[str, str]:
    """Return the metadata of a file: the model's class, the versions and the device."""
    from roundscope import __version__

    bare = getattr(model, "_orig_mod", model)
    about = {
        "source": type(bare).__name__,
        "roundscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch.compile": "off while capturing",
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "device": platform.machine() if device.type == "cpu" else str(device),
    }
    if "transformers" in sys.modules:
        about["transformers"] = sys.modules["transformers"].__version__
    if device.type == "cuda":
        about["device"] = torch.cuda.get_device_name(device)
        about["cuda"] = str(torch.version.cuda)
        cudnn: Any = torch.backends.cudnn
        about["cudnn"] = str(cudnn.version())
    return about
