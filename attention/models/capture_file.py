"""Calls of attention captured in a model: what is kept of each, and the file that they make.

The file is one safetensors file. Its tensors are `<prefix>.q k v mask bias out do dq dk dv sinks`,
where the prefix is `layers.<number>`, or `step.<step>.layers.<number>` if the file holds several
steps; further calls of a layer in the same step have `.call.<n>` behind it, n from 1.
They are contiguous and in the model's own types, in layout BNTH: (batch, heads, tokens, features).

    q, out, do, dq   (B, N, T, H), out and do with the features of v
    k, v, dk, dv     (B, G, S, H), where G divides N
    mask             bool (B or 1, N or 1, T, S), True where a query sees a key
    bias             (B or 1, N or 1, T, S), numbers that are added to the scaled scores
    sinks            (N,)

Metadata are strings: layout, scale, is_causal (true or false; query t sees the keys s <= t),
alignment (top-left or bottom-right: `attention.inputs.alignment`), step,
implementation, window, softcap, dropout, notes, and what the caller says of versions. What differs
between calls stands under `<prefix>.scale` and so on in place of `scale`; `<prefix>.name` is the
path of the module. `roundscope trace`, `identify` and `diagnose` read such a file as it is.
"""

import errno
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # safetensors knows NumPy's BF16 only after this import
import numpy as np

from roundscope.attention.arguments import check_scores_shape
from roundscope.attention.inputs.alignment import Alignment, shift_of
from roundscope.attention.inputs.float_masks import parted
from roundscope.emu.numbers import check_count, is_whole, listed
from roundscope.emu.shown import shown
from roundscope.emu.whole_files import path_given, whole_file

FORMAT = "roundscope-capture-1"
LAYOUT = "BNTH"
ENDED = "ended by"  # how the remark of a file begins whose capture an error ended
TENSORS = ("q", "k", "v", "mask", "bias", "out", "do", "dq", "dk", "dv", "sinks")
OF_QUERIES = ("q", "out", "do", "dq")
OF_CALLS = (
    "scale",
    "is_causal",
    "alignment",
    "step",
    "implementation",
    "window",
    "softcap",
    "dropout",
    "notes",
)
"""Metadata that stand once in a file if all of its calls agree, else once for each call."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Captured:
    """One call of attention in a model, with its gradients if there was a backward.

    number, name    the number of the layer in the order of the model; the path of its module
    step            the number of the forward pass, counted from 0
    call            the number of the call of its layer in that pass, counted from 0
    q, k, v, out    (B, N, T, H), (B, G, S, H), (B, G, S, Hv), (B, N, T, Hv), NumPy arrays of any
                    floating-point type, ml_dtypes' included
    do              the gradient of a loss with respect to out; dq, dk, dv: to q, k and v
    mask            bool, True where a query sees a key, or numbers that are added to the scaled
                    scores, as models have both in one (`finished` parts them); broadcasts to
                    (B, N, T, S)
    bias            numbers that are added to the scaled scores, which hide no key
    sinks           (N,): a logit for each head, which enters the sums of rows
    scale           the factor of the scores
    is_causal       whether query t sees the keys s <= t only
    alignment       whether t and s are counted from the first ("top-left") or from the last
    window          how many keys a query sees, its own included; None for all
    softcap         the bound of the scores; None for none
    dropout         the probability with which a weight was dropped, 0 for none; above 0, out does
                    not follow from the other tensors
    implementation  what computed the call, such as "eager" or "sdpa flash"
    notes           what a reader of the file should know of the call, in words
    """

    number: int
    name: str
    step: int = 0
    call: int = 0
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out: np.ndarray | None = None
    do: np.ndarray | None = None
    dq: np.ndarray | None = None
    dk: np.ndarray | None = None
    dv: np.ndarray | None = None
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    sinks: np.ndarray | None = None
    scale: float
    is_causal: bool
    alignment: Alignment = "top-left"
    window: int | None = None
    softcap: float | None = None
    dropout: float = 0.0
    implementation: str = "unknown"
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return one line, without the numbers."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        has = [name for name, x in arrays.items() if isinstance(x, np.ndarray)]
        return (
            f"<Captured layer {self.number} ({self.name or 'the model itself'}), step {self.step},"
            f" call {self.call}: {self.implementation}, q {self.q.shape}, k {self.k.shape},"
            f" {self.q.dtype}; has {', '.join(has)}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which part of a call is kept: entries of the batch, key heads, the first tokens; None: all.

    A key head is kept with all query heads that share it, so that its dk and dv are whole.
    """

    batch: tuple[int, ...] | None = (0,)
    heads: tuple[int, ...] | None = None
    tokens: int | None = None

    def entries(self, x: Any, key_heads: int) -> Any:
        """Return the chosen batch entries and heads of an array (B, N or G, T, H).

        The array is of NumPy, JAX or torch; `key_heads` is G.

        Raises:
            ValueError: The array has no such batch entry or head.
        """
        return self._of_heads(_at(x, 0, "batch", self.batch), 1, key_heads)

    def of_mask(self, mask: Any, shape: Sequence[int], key_heads: int) -> Any:
        """Return the mask of the chosen batch entries and heads, with four axes.

        Axes of one entry, along which the mask is the same for all, stay so. `shape` is
        (B, N, T, S), to which the mask broadcasts.
        """
        mask = mask.reshape((1,) * (4 - len(mask.shape)) + tuple(mask.shape))
        if mask.shape[0] != 1 or shape[0] == 1:
            mask = _at(mask, 0, "batch", self.batch)
        return mask if mask.shape[1] == 1 else self._of_heads(mask, 1, key_heads)

    def of_sinks(self, sinks: Any, key_heads: int) -> Any:
        """Return the logits (N,) of the chosen heads."""
        return self._of_heads(sinks, 0, key_heads)

    def _of_heads(self, x: Any, axis: int, key_heads: int) -> Any:
        if self.heads is None:
            return x
        _check_numbers("heads", self.heads, key_heads, "key heads")
        group = x.shape[axis] // key_heads
        chosen = [head * group + i for head in self.heads for i in range(group)]
        return x[(slice(None),) * axis + (np.array(chosen),)]


def choice_given(
    heads: Iterable[int] | int | None, tokens: int | None, batch: Iterable[int] | int | None
) -> Choice:
    """Return the choice that a caller's arguments stand for.

    Args:
        heads: Numbers of key heads, from 0; None for all.
        tokens: How many of the first tokens; None for all.
        batch: Numbers of entries of the batch, from 0; None for all.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is below 0, there is no number, or there are no tokens.

    Example:
        >>> choice_given(heads=[0, 2], tokens=128, batch=0)
        Choice(batch=(0,), heads=(0, 2), tokens=128)
    """
    if tokens is not None and _whole("tokens", tokens) < 1:
        raise ValueError(f"tokens={tokens}: give 1 or more, or None for all")
    if tokens is not None:
        check_count("tokens", tokens, 1, "it is how many of the first are kept")
    return Choice(
        batch=numbers_given("batch", batch),
        heads=numbers_given("heads", heads),
        tokens=None if tokens is None else operator.index(tokens),
    )


def numbers_given(name: str, values: Iterable[int] | int | None) -> tuple[int, ...] | None:
    """Return numbers from 0, given as one, several or None for all, sorted and each once.

    Raises:
        TypeError: They are no whole numbers.
        ValueError: One of them is below 0, or there are none.
    """
    if values is None:
        return None
    words = "whole numbers, such as [0, 2]"
    several = [values] if is_whole(values) else listed(name, values, words)
    numbers = tuple(sorted({_whole(name, value) for value in several}))
    if not numbers or numbers[0] < 0:
        raise ValueError(f"{name}={shown(list(numbers))}: give numbers from 0, or None for all")
    return numbers


def finished(call: Captured, choice: Choice) -> Captured:
    """Return a call as it is written: its mask in the simplest form, its first tokens.

    The entries and heads are taken to be chosen already. Of a float mask, the lowest numbers of its
    type, which is how many models hide keys, become a bool mask, and the others, if they are not
    all 0, the bias (`attention.inputs.float_masks`). A mask that is causal becomes `is_causal`, and
    one that lets every query see every key becomes None. Of a causal call the first `choice.tokens`
    queries and the keys up to the last of them are kept, of others the first queries with all keys.
    The gradients dk and dv, which sum over all queries, are left out where queries are. `notes`
    say all of this.

    Raises:
        ValueError: A mask does not broadcast to (B, N, T, S), or none of the first tokens sees a
            key.
    """
    return _first_tokens(_with_plain_mask(call), choice.tokens)


OTHERS = (".pt", ".pth", ".bin", ".npz", ".npy", ".json", ".pkl")  # other kinds of files


def file_given(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is to be written.

    Raises:
        ValueError: It is a folder, or its folder does not exist.
    """
    file = path_given("path", path, "qkv.safetensors")
    if file.is_dir():
        raise ValueError(
            f"path={shown(str(path))}: is a folder; name a file in it, such as qkv.safetensors"
        )
    if file.suffix in OTHERS:
        raise ValueError(
            f"path={shown(str(path))}: the file is one of safetensors, which a reader of"
            f" {file.suffix} files would not know; name it {file.stem}.safetensors"
        )
    if not file.absolute().parent.is_dir():
        raise ValueError(
            f"path={shown(str(path))}: there is no folder {file.parent}; make it first"
        )
    return file


def write_captures(
    path: str | os.PathLike[str], calls: Sequence[Captured], about: Mapping[str, str]
) -> None:
    """Write captured calls to a safetensors file, whole or not at all.

    The file is written beside `path` under another name, which is then changed, so that a file
    that was there is replaced only by a complete one. Arrays are made contiguous first: safetensors
    writes memory as it lies, and so a transposed array untransposed.

    Args:
        path: The file.
        calls: The calls, each of another layer or another step.
        about: Further metadata, such as the versions of the libraries.

    Raises:
        ValueError: There are no calls, two calls have the same layer and step, or `path` cannot be
            written.

    Example:
        >>> import tempfile, numpy as np
        >>> from safetensors.numpy import load_file
        >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 8, 4), "f4")
        >>> call = Captured(number=0, name="attn", q=q, k=k, v=v, scale=0.5, is_causal=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_captures(f"{folder}/qkv.safetensors", [call], {"source": "an example"})
        ...     tensors = load_file(f"{folder}/qkv.safetensors")
        >>> {name: x.shape for name, x in sorted(tensors.items())}
        {'layers.0.k': (1, 2, 8, 4), 'layers.0.q': (1, 2, 8, 4), 'layers.0.v': (1, 2, 8, 4)}
    """
    file = file_given(path)
    if not calls:
        raise ValueError("calls=[]: there is nothing to write; capture at least one call")
    prefixes = _prefixes(calls)
    arrays = {
        f"{prefix}.{name}": np.ascontiguousarray(array)
        for prefix, call in zip(prefixes, calls, strict=True)
        for name in TENSORS
        if (array := getattr(call, name)) is not None
    }
    save_tensors(file, arrays, _metadata(prefixes, calls, about))


def save_tensors(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write a safetensors file whole or not at all.

    Raises:
        OSError: It cannot be written, for example to a full disk; its `filename` is `path`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with whole_file(path) as unfinished:
        try:
            save_file(dict(arrays), unfinished, dict(about))
        except SafetensorError as error:  # which tells the system's number in words alone
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), str(path)) from error


def _prefixes(calls: Sequence[Captured]) -> list[str]:
    has_steps = len({call.step for call in calls}) > 1
    prefixes = [
        (f"step.{call.step}." if has_steps else "")
        + f"layers.{call.number}"
        + (f".call.{call.call}" if call.call else "")
        for call in calls
    ]
    for call, prefix in zip(calls, prefixes, strict=True):
        if prefixes.count(prefix) > 1:
            raise ValueError(
                f"calls: two of layer {call.number} ({call.name}) in step {call.step}; keep one"
            )
    return prefixes


def _metadata(
    prefixes: Sequence[str], calls: Sequence[Captured], about: Mapping[str, str]
) -> dict[str, str]:
    """Return the metadata: what all calls agree on stands once."""
    texts = {name: [_text(getattr(call, name)) for call in calls] for name in OF_CALLS}
    texts["dropout"] = [_text(call.dropout or None) for call in calls]
    data = {"format": FORMAT, **about, "layout": LAYOUT}
    for name, each in texts.items():
        if len(set(each)) == 1:
            data |= {name: each[0]} if each[0] else {}
        else:
            data |= {f"{p}.{name}": text for p, text in zip(prefixes, each, strict=True) if text}
    return data | {f"{p}.name": call.name for p, call in zip(prefixes, calls, strict=True)}


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(value)
    if isinstance(value, (bool, np.bool_)):
        return str(value).lower()
    return "" if value is None else str(value)


def _with_plain_mask(call: Captured) -> Captured:
    if call.mask is None:
        return call
    queries, keys = call.q.shape[2], call.k.shape[2]
    check_scores_shape("mask", call.mask, (*call.q.shape[:2], queries, keys))
    mask = call.mask.reshape((1,) * (4 - call.mask.ndim) + call.mask.shape)
    mask = np.array(np.broadcast_to(mask, (*mask.shape[:2], queries, keys)))
    notes = list(call.notes)
    is_added = mask.dtype != bool
    if is_added:
        mask, bias = parted(mask)
        call = replace(call, bias=bias)
    if mask.all():
        return replace(call, mask=None)
    added = ", which was added to the scores as 0 and lowest numbers," if is_added else ""
    if call.bias is not None:
        added = ", which was added to the scores as the lowest numbers of a bias,"
    is_first = call.alignment == "top-left" or queries == keys
    causal = np.broadcast_to(np.tri(queries, keys, dtype=bool), mask.shape)
    if is_first and np.array_equal(mask, causal):
        notes.append(f"its causal mask{added} is written as is_causal")
        return replace(call, mask=None, is_causal=True, notes=tuple(notes))
    if added:
        notes.append(f"its mask{added} is written as bool")
    if blind := int((~mask.any(-1)).sum()):
        notes.append(
            f"{blind} rows of the mask see no key; what a model returns there is its own choice"
        )
    return replace(call, mask=mask, notes=tuple(notes))


def _first_tokens(call: Captured, tokens: int | None) -> Captured:
    queries, keys = call.q.shape[2], call.k.shape[2]
    if tokens is None or tokens >= queries:
        return call
    shift = shift_of(call.alignment, queries, keys)
    if shift and call.window is not None and not call.is_causal:
        raise ValueError(
            f"tokens={tokens}: of {queries} queries of a window that counts {keys} keys from the"
            " last; keep all tokens"
        )
    seen = min(tokens + shift, keys) if call.is_causal else keys
    if seen < 1:
        raise ValueError(
            f"tokens={tokens}: the first {-shift} of {queries} queries see none of the {keys} keys;"
            f" keep more than {-shift}"
        )
    alignment: Alignment = call.alignment if call.is_causal else "top-left"
    changed: dict[str, Any] = {
        name: x[:, :, :tokens] for name in OF_QUERIES if (x := getattr(call, name)) is not None
    }
    changed |= {"k": call.k[:, :, :seen], "v": call.v[:, :, :seen], "dk": None, "dv": None}
    for name in ("mask", "bias"):
        if (x := getattr(call, name)) is not None:
            changed[name] = x[:, :, :tokens, :seen]
    note = f"the first {tokens} of {queries} queries and {seen} of {keys} keys"
    if call.dk is not None:
        note += ", without dk and dv, which sum over all queries"
    return replace(call, **changed, alignment=alignment, notes=(*call.notes, note))


def _at(x: Any, axis: int, name: str, numbers: tuple[int, ...] | None) -> Any:
    if numbers is None:
        return x
    _check_numbers(name, numbers, x.shape[axis], "entries")
    return x[(slice(None),) * axis + (np.array(numbers),)]


def _check_numbers(name: str, numbers: tuple[int, ...], count: int, what: str) -> None:
    if numbers[-1] >= count:
        raise ValueError(
            f"{name}={list(numbers)}: there are {count} {what}, numbered from 0 to {count - 1}"
        )


def _whole(name: str, value: Any) -> int:
    if not is_whole(value) or value >= 2**63:
        raise TypeError(f"{name}={shown(value)}: give whole numbers, such as [0, 2]")
    return operator.index(value)
