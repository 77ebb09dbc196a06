"""`ended`: the tape of a run that has ended, with its results and what its bits depend on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from roundscope.operations.models.tape import Entry, Runner, Tape
from roundscope.operations.models.torch.arrays import TensorArrays
from roundscope.operations.models.torch.recording.recorder import Recorder

LOGPROBS = "logprobs= a function that computes them from the logits by functions of PyTorch"
LOSS = "loss= a function that computes it by functions of PyTorch"


def ended(
    recorder: Recorder,
    model: nn.Module,
    result: Tensor,
    tokens: Tensor | None,
    logprobs: Tensor | None = None,
    row: int = 0,
    loss: Tensor | None = None,
) -> Tape:
    """Return what was recorded, with what it ended with."""
    value, own = recorder.value_of(result), None
    if logprobs is not None:
        own = recorder.value_of(logprobs, "the log-probabilities", LOGPROBS)
    lost = None if loss is None else recorder.value_of(loss, "the loss", LOSS)
    lengths = _lengths(recorder, tokens)
    # each token a row of the vocabulary, or each of the last ones
    has_logits = tokens is not None and result.dim() == 3 and len(result) == len(tokens)
    first = tokens.shape[1] - result.shape[1] if tokens is not None and has_logits else 0
    ends = [v for v in (value, own, lost) if v is not None]
    entries, runners = _without_unused(recorder, ends)
    return Tape(
        entries=entries,
        values=recorder.values,
        tokens=None if tokens is None else tokens.detach().cpu().numpy(),
        logits=value if has_logits and first >= 0 else None,
        logprobs=own,
        output=value,
        about=about(model, result.device),
        runners=runners,
        arrays=TensorArrays(),
        row=row,
        lengths=lengths,
        first=max(first, 0),
        loss=lost,
    )


def _lengths(recorder: Recorder, tokens: Tensor | None) -> tuple[int, ...]:
    """Return how many tokens each pass read; () if that is not known."""
    if tokens is None:
        return ()
    read = [p.tokens for p in recorder.passes if p.tokens is not None]
    if len(read) == len(recorder.passes) and sum(x.shape[1] for x in read) == tokens.shape[1]:
        return tuple(x.shape[1] for x in read)
    return (tokens.shape[1],) if len(recorder.passes) < 2 else ()


def _without_unused(
    recorder: Recorder, ends: Sequence[int]
) -> tuple[list[Entry], dict[int, Runner]]:
    """Return the entries, without those beside the model on which nothing depends.

    Such are the sampling of a token in `generate()`, and another model that runs meanwhile.
    """
    needed = {*ends}
    kept: list[Entry] = []
    for entry in reversed(recorder.entries):
        if entry.number in recorder.outside and needed.isdisjoint(entry.outputs):
            continue
        needed |= {*entry.reads}
        kept.append(entry)
    kept.reverse()
    runners = {n: recorder.runners[entry.number] for n, entry in enumerate(kept)}
    return [replace(entry, number=n) for n, entry in enumerate(kept)], runners


def about(model: nn.Module, device: torch.device) -> dict[str, str]:
    """Return what a run's bits depend on beside its numbers: versions, device, threads."""
    found = {
        "model": type(getattr(model, "_orig_mod", model)).__name__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "device": str(device),
        "threads": str(torch.get_num_threads()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if "transformers" in sys.modules:
        found["transformers"] = sys.modules["transformers"].__version__
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
    return found
