"""`capture_operations`: the operations of a model that runs, as a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from roundscope.attention.models.capture_file import file_given
from roundscope.emu.errors import known_arguments
from roundscope.operations.models.tape_file import LIMIT, save_tape
from roundscope.operations.models.torch.recording.ended import ended
from roundscope.operations.models.torch.recording.record import recording
from roundscope.operations.models.torch.recording.recorder import Pass, Recorder
from roundscope.operations.models.torch.side import result_of


@known_arguments
@contextmanager
def capture_operations(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    weights: bool = True,
    limit: int = LIMIT,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Recorder]:
    """Capture the operations of a model while it runs, and write them to a file at the end.

    The file has the inputs and results of every operation: RMSNorm, linear layers, rotary
    embeddings, attention, activations, sums, and whatever else runs. `roundscope compare` reads it.
    No bit of the model's outputs changes, but where PyTorch takes its fast path of
    `nn.MultiheadAttention`, which is off meanwhile: a warning says so. All results are kept in
    memory until the end.

    Args:
        model: Any `nn.Module`.
        path: The safetensors file. Its folder must exist; a file of that name is replaced.
        weights: Whether the parameters are written too, without which linear layers cannot run
            again from the file.
        limit: The largest number of bytes that is written.
        tell: Told the size of the file in words before it is written.

    Yields:
        What has been recorded so far, as `entries`.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: A path that cannot be written, a file that would be too large, or a model whose
            dropout is active.
        RuntimeError: The model did not run.
    """
    file = file_given(path)
    with recording(model) as recorder:
        yield recorder
        if not recorder.passes:
            raise RuntimeError(
                "nothing was captured, and no file was written: the model did not run"
            )
        result = _whole(recorder.passes)
        with recorder.silent():
            read = _read(recorder.passes)
    save_tape(ended(recorder, model, result, read), file, weights=weights, limit=limit, tell=tell)


def _whole(passes: Sequence[Pass]) -> Tensor:
    """Return what forward passes returned as one result.

    Where passes have logits of their last tokens only, as those of `generate()` have, the result is
    of all tokens from which on none is missing.

    Raises:
        ValueError: They are no parts of one run.
    """
    results = [result_of(p.out) for p in passes]
    tokens = [p.tokens for p in passes if p.tokens is not None]
    if len(passes) > 1 and len({len(x) for x in tokens}) > 1:
        sizes = " and ".join(map(str, dict.fromkeys(len(x) for x in tokens)))
        raise ValueError(
            f"no file was written: the forward passes have batches of {sizes} rows, so they are not"
            " parts of one run; capture one of them, and generate with num_beams=1"
        )
    first = 0
    if len(tokens) == len(passes) and all(x.dim() == 3 for x in results):
        first = len(passes) - 1
        while first and results[first].shape[1] == tokens[first].shape[1]:
            first -= 1
    kept = results[first:]
    return kept[0] if len(kept) == 1 else torch.cat(kept, 1)


def _read(passes: Sequence[Pass]) -> Tensor | None:
    """Return the tokens that forward passes read, one behind the other; None if one read none."""
    tokens = [p.tokens for p in passes if p.tokens is not None]
    return torch.cat(tokens, 1) if len(tokens) == len(passes) else None
