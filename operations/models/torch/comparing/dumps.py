"""`read_results`: what another program kept of a run, results of some modules by their names.

It is a dictionary, a .pt or .safetensors file of one, or the folder that SGLang writes for
`--debug-tensor-dump-output-folder`. Of that format what is said here was read from the public
source, `python/sglang/srt/debug_utils/tensor_dump_forward_hook.py` at commit 25b38cc2abad; it was
not run here. A file `Pass<number>.pt` has the results of the modules without modules inside, each a
tensor (tokens, features) or a list of tensors, and "model.forward_batch_info.input_ids",
"seq_lens" and "positions". A file is written when the module `model` ends, so what comes after
that (`model` itself, `lm_head`, `logits_processor`) is in the file of the next pass.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundscope.emu.shown import shown
from roundscope.operations.models.comparing.tokens import Incomparable

TOKENS = ("input_ids", "token_ids", "tokens")
LOGPROBS = "logprobs"
BATCH = "model.forward_batch_info."
FILE = re.compile(r"Pass(\d+)\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A result of a module: its tensors (tokens, features), and the positions of the tokens."""

    name: str
    tensors: tuple[Tensor, ...]
    positions: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of a run of one sequence.

    Attributes:
        results: Them, by name.
        tokens: The tokens that were read; None if that is not known.
        logprobs: Log-probabilities of the last tokens, as many as there are numbers; None if there
            are none.
    """

    results: Mapping[str, Result]
    tokens: np.ndarray | None
    logprobs: np.ndarray | None


def read_results(given: Any, tokens: np.ndarray) -> Results:
    """Return the results that another program kept of a run on some tokens.

    Args:
        given: A dictionary of tensors, or the path of a file or folder.
        tokens: The tokens (T,), of which the run may have read one less: the last one that it gave.

    Raises:
        Incomparable: The results are of other tokens.
        ValueError: They are no tensors, or the file cannot be read.
    """
    if isinstance(given, Mapping):
        return _of_one(given, tokens, "b")
    path = Path(given)
    if path.is_dir():
        return _of_folder(path, tokens)
    return _of_one(_loaded(path), tokens, str(path))


def _loaded(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever it raises
        raise ValueError(
            f"{path}: cannot be read as tensors alone ({type(error).__name__}); write a dictionary"
            " of name and tensor by torch.save, or by safetensors"
        ) from None
    if not isinstance(found, Mapping):
        raise ValueError(f"{path}: {shown(found)}, must be a dictionary of name and tensor")
    return found


def _tensors(name: str, x: Any, where: str) -> tuple[Tensor, ...]:
    each = tuple(x) if isinstance(x, list | tuple) else (x,)
    each = tuple(torch.as_tensor(y) if isinstance(y, np.ndarray) else y for y in each)
    if not all(isinstance(y, Tensor) for y in each):
        raise ValueError(f"{where}: {name!r}: {shown(x)}, must be a tensor or a list of tensors")
    return tuple(y.detach().cpu() for y in each)


def _of_one(given: Mapping[str, Any], tokens: np.ndarray, where: str) -> Results:
    if "hidden_states" in given and "token_ids" in given:
        raise ValueError(
            f"{where}: hidden states of layers that the file does not name; give a dictionary, as"
            ' {f"model.layers.{k} input": x[:, n] for n, k in enumerate(layers)}, with "token_ids"'
        )
    read = next((given[n] for n in (*TOKENS, f"{BATCH}input_ids") if n in given), None)
    own = None if read is None else np.asarray(_tensors("tokens", read, where)[0]).reshape(-1)
    if own is not None:
        _check_tokens(own, tokens, where)
    count = len(tokens) if own is None else len(own)
    results = {}
    for name, x in given.items():
        if name in (*TOKENS, LOGPROBS) or name.startswith(BATCH):
            continue
        each = _tensors(name, x, where)
        results[name] = Result(name=name, tensors=each, positions=_last(each, count))
    logprobs = given.get(LOGPROBS)
    if logprobs is not None:
        logprobs = np.asarray(_tensors(LOGPROBS, logprobs, where)[0].double()).reshape(-1)
        if not 0 < len(logprobs) <= len(tokens):
            raise ValueError(
                f"{where}: logprobs: {len(logprobs)} numbers for {len(tokens)} tokens; give one of"
                " each of the last tokens"
            )
    return Results(results=results, tokens=own, logprobs=logprobs)


def _last(tensors: Sequence[Tensor], count: int) -> np.ndarray:
    """Return the positions of a result's tokens: all, or the last ones if it has fewer rows."""
    shape = tensors[0].shape
    rows = shape[0] if len(shape) != 3 or shape[0] != 1 else shape[1]
    return np.arange(max(count - rows, 0), count)


def _check_tokens(own: np.ndarray, tokens: np.ndarray, where: str) -> None:
    if len(own) in (len(tokens), len(tokens) - 1) and (own == tokens[: len(own)]).all():
        return
    n = min(len(own), len(tokens))
    apart = np.flatnonzero(own[:n] != tokens[:n])
    how = f"they first differ at token {apart[0]}" if apart.size else f"{len(own)} tokens"
    raise Incomparable(
        f"tokens: {where} is of other ones than A, which read {len(tokens)} ({how}); give both the"
        " same"
    )


def _of_folder(folder: Path, tokens: np.ndarray) -> Results:
    paths = sorted(folder.rglob("Pass*.pt"))
    folders = {path.parent for path in paths}
    if not paths:
        raise ValueError(f"{folder}: no Pass<number>.pt, as SGLang's tensor dump writes them")
    if len(folders) > 1:
        raise ValueError(
            f"{folder}: {len(folders)} folders of passes, so each has a part of a tensor or of a"
            " start of the server; name one folder of a run with --tp 1"
        )
    passes = [_loaded(path) for path in paths]
    moved = _in_their_passes(passes)
    sequences = list(_sequences(moved))
    for number, own in enumerate(sequences):
        read = np.concatenate([np.asarray(p[f"{BATCH}input_ids"]) for p in own])
        fits = len(read) in (len(tokens), len(tokens) - 1)
        if fits and (read == tokens[: len(read)]).all():
            return _joined(own, read)
        del number
    raise Incomparable(
        f"tokens: none of the {len(sequences)} sequences of {folder} is the one that A read"
        f" ({len(tokens)} tokens); give A the prompt with what was generated, and the server one"
        " request at a time"
    )


def _in_their_passes(passes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the results with those that were written a file later at their own pass."""
    late = [
        {n: x for n, x in p.items() if n == "model" or not n.startswith("model.")} for p in passes
    ]
    if late[0]:  # written with their own pass
        return [dict(p) for p in passes]
    found = []
    for number, own in enumerate(passes):
        inside = {n: x for n, x in own.items() if n not in late[number]}
        found.append(inside | (late[number + 1] if number + 1 < len(passes) else {}))
    return found


def _sequences(passes: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the passes of each sequence: from a pass at position 0 to that before the next one."""
    own: list[dict[str, Any]] = []
    for each in passes:
        if f"{BATCH}input_ids" not in each or f"{BATCH}positions" not in each:
            continue
        if np.asarray(each[f"{BATCH}positions"]).reshape(-1)[0] == 0 and own:
            yield own
            own = []
        own.append(each)
    if own:
        yield own


def _joined(passes: Sequence[Mapping[str, Any]], tokens: np.ndarray) -> Results:
    """Return the results of passes one behind the other."""
    found: dict[str, list[tuple[tuple[Tensor, ...], np.ndarray]]] = {}
    for own in passes:
        positions = np.asarray(own[f"{BATCH}positions"]).reshape(-1)
        if len(np.asarray(own.get(f"{BATCH}seq_lens", [0])).reshape(-1)) > 1:
            raise ValueError(
                "a pass of the dump has several sequences; give the server one request at a time"
            )
        for name, x in own.items():
            if name.startswith(BATCH):
                continue
            each = _tensors(name, x, "the dump")
            found.setdefault(name, []).append((each, positions[-len(each[0]) :]))
    results = {}
    for name, parts in found.items():
        if len({len(each) for each, _ in parts}) > 1:
            continue
        tensors = tuple(torch.cat(list(x)) for x in zip(*(each for each, _ in parts), strict=True))
        where = np.concatenate([positions for _, positions in parts])
        results[name] = Result(name=name, tensors=tensors, positions=where)
    return Results(results=results, tokens=tokens, logprobs=None)
