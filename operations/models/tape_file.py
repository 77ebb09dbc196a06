"""A tape as a file: safetensors, with the operations as JSON in its metadata. It holds no code.

Results of operations, inputs, what the run ended with, and parameters are tensors; results of views
and casts are not stored.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.models.capture_file import save_tensors
from roundscope.emu.plain_data import COUNT, misfit, parsed
from roundscope.operations.models.comparing.align import ending
from roundscope.operations.models.tape import PARAMETER, Entry, Ref, Span, Tape, Value, refs, within

FORMAT = "roundscope-operations-1"
LIMIT = 2_000_000_000  # bytes
_TREE = object
_SHAPE = {
    "entries": [
        {
            "operation": str,
            "function": str,
            "module": str,
            "step": COUNT,
            "arguments": [_TREE],
            "outputs": [COUNT],
            "held": {str: COUNT},
            "settings": dict,
            "note": str,
        }
    ],
    "values": [{"name": str, "dtype": str, "shape": [COUNT], "digest": str}],
    "logits": (COUNT, None),
    "logprobs": (COUNT, None),
    "output": (COUNT, None),
    "row": COUNT,
    "lengths": [COUNT],
    "first": COUNT,
    "about": {str: str},
}


def save_tape(
    tape: Tape, path: Path, *, weights: bool = True, limit: int = LIMIT, tell: Any = None
) -> None:
    """Write a tape to a file.

    Args:
        tape: It.
        path: The file; one of that name is replaced.
        weights: Whether the parameters are written; their digests are in any case.
        limit: The largest number of bytes.
        tell: Told the size in words before it is written.

    Raises:
        ValueError: It would be larger than the limit.
        OSError: It cannot be written.
    """
    wanted = {v for entry in tape.counted for v in (*entry.outputs, *refs([*entry.held.values()]))}
    wanted |= {i for i, value in enumerate(tape.values) if value.name} | {ending(tape)}
    wanted |= {v for v in (tape.logits,) if v is not None}
    names = {i: tape.values[i].name for i in wanted}
    stored = sorted(i for i in wanted if weights or not names[i].startswith(PARAMETER))
    arrays = {i: tape.numpy(i) for i in stored if tape.values[i].array is not None}
    size = sum(x.nbytes for x in arrays.values())
    if size > limit:
        repair = "give weights=False, fewer tokens, or a larger limit="
        raise ValueError(f"{path}: {size:,} bytes, more than limit={limit:,} bytes: {repair}")
    if tell is not None:
        passes = f" of {tape.steps} forward passes" if tape.steps > 1 else ""
        tell(f"{path}: {len(tape.counted):,} operations{passes}, {size / 1e6:,.1f} MB")
    data = {
        "entries": [_written(entry) for entry in tape.entries],
        "values": [
            {
                "name": value.name,
                "dtype": value.dtype,
                "shape": list(value.shape),
                "digest": _digest(tape, i) if value.name.startswith(PARAMETER) else "",
            }
            for i, value in enumerate(tape.values)
        ],
        "logits": tape.logits,
        "logprobs": tape.logprobs,
        "output": tape.output,
        "row": tape.row,
        "lengths": list(tape.lengths),
        "first": tape.first,
        "about": dict(tape.about),
    }
    tensors = {f"v.{i}": np.asarray(x, order="C") for i, x in arrays.items()}
    if tape.tokens is not None:
        tensors["tokens"] = np.ascontiguousarray(tape.tokens)
    save_tensors(path, tensors, {"format": FORMAT, "tape": json.dumps(data)})


def load_tape(path: Path) -> Tape:
    """Read a tape from a file. Its operations cannot run until a library revives them.

    Raises:
        ValueError: It is no such file, or a damaged one.
        OSError: It cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                raise ValueError(
                    f"{path}: format {about.get('format')!r}, must be {FORMAT!r}, as"
                    ' capture(..., what="operations") of roundscope.torch or .jax writes it'
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file, or a damaged one: {error}") from None
    try:
        data = parsed(about.get("tape", ""))
    except ValueError as error:
        raise ValueError(f"{path}: its metadata 'tape' cannot be read: {error}") from None
    if wrong := misfit(data, _SHAPE):
        raise ValueError(f"{path}: its metadata 'tape': {wrong}")
    values = [
        Value(
            name=v["name"],
            dtype=v["dtype"],
            shape=tuple(v["shape"]),
            array=arrays.get(f"v.{i}"),
            digest=v["digest"],
        )
        for i, v in enumerate(data["values"])
    ]
    try:
        entries = [_read(i, entry) for i, entry in enumerate(data["entries"])]
    except ValueError as error:
        raise ValueError(f"{path}: its metadata 'tape': {error}") from None
    used = {v for e in entries for v in (*e.outputs, *e.reads)}
    used |= {data[name] for name in ("logits", "logprobs", "output") if data[name] is not None}
    if any(v >= len(values) for v in used):
        raise ValueError(f"{path}: its metadata 'tape': a value is missing; capture it again")
    for i, value in enumerate(values):
        if value.array is not None and value.array.shape != value.shape:
            raise ValueError(f"{path}: tensor v.{i}: shape {value.array.shape}, not {value.shape}")
    return Tape(
        entries=entries,
        values=values,
        tokens=arrays.get("tokens"),
        about=data["about"],
        arrays=NumpyArrays(),
        lengths=tuple(data["lengths"]),
        **{name: data[name] for name in ("logits", "logprobs", "output", "row", "first")},
    )


def is_tape(path: Path) -> bool:
    """Return whether a path is read as the file of a tape: it is none of results of modules."""
    from safetensors import SafetensorError, safe_open

    if path.is_dir() or path.suffix in (".pt", ".pth"):
        return False
    try:
        with safe_open(path, "np") as file:
            return "format" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return True  # whose error `load_tape` tells


def digested(tape: Tape) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Return type, shape and digest of each parameter of a run."""
    return {
        value.name: (value.dtype, value.shape, value.digest or _digest(tape, i))
        for i, value in enumerate(tape.values)
        if value.name.startswith(PARAMETER)
    }


def _digest(tape: Tape, value: int) -> str:
    return hashlib.sha256(np.ascontiguousarray(tape.numpy(value)).tobytes()).hexdigest()


def _written(entry: Entry) -> dict[str, Any]:
    return {
        "operation": entry.operation,
        "function": entry.function,
        "module": entry.module,
        "step": entry.step,
        "arguments": [_plain(x) for x in entry.arguments],
        "outputs": list(entry.outputs),
        "held": {name: ref.value for name, ref in entry.held.items()},
        "settings": {name: _plain(x) for name, x in entry.settings.items()},
        "note": entry.note,
    }


def _read(number: int, data: Mapping[str, Any]) -> Entry:
    args, kwargs = [*map(_tree, data["arguments"]), None, None][:2]
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise ValueError(f"entries[{number}].arguments are not those of a function")
    return Entry(
        number=number,
        operation=data["operation"],
        function=data["function"],
        module=data["module"],
        step=data["step"],
        arguments=(args, kwargs),
        outputs=tuple(data["outputs"]),
        held={name: Ref(value) for name, value in data["held"].items()},
        settings={name: _tree(x) for name, x in data["settings"].items()},
        note=data["note"],
    )


@dataclass(frozen=True, slots=True)
class Named:
    """A constant that JSON does not have: a "dtype", a "device" or an "other" one, in words."""

    kind: str
    words: str


def _plain(x: Any) -> Any:
    """Return a tree of arguments as JSON has it."""
    if isinstance(x, Ref):
        return {"ref": x.value}
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, float):
        return x if math.isfinite(x) else {"number": str(x)}
    if isinstance(x, Named):
        return {x.kind: x.words}
    if isinstance(x, tuple):
        return {"tuple": [_plain(y) for y in x]}
    if isinstance(x, list):
        return [_plain(y) for y in x]
    if isinstance(x, dict):
        return {"dict": {str(name): _plain(y) for name, y in x.items()}}
    if isinstance(x, slice):
        return {"slice": [_plain(y) for y in (x.start, x.stop, x.step)]}
    if x is Ellipsis:
        return {"ellipsis": ""}
    kind = type(x).__name__
    return {kind if kind in ("dtype", "device") else "other": str(x)[:80]}


def _tree(x: Any) -> Any:
    """Return a tree of arguments from JSON."""
    if isinstance(x, list):
        return [_tree(y) for y in x]
    if not isinstance(x, dict):
        return x
    if len(x) != 1:
        raise ValueError("an argument of an operation is none that is known; capture it again")
    ((kind, value),) = x.items()
    if kind == "ref" and isinstance(value, int) and value >= 0:
        return Ref(value)
    if kind == "tuple" and isinstance(value, list):
        return tuple(_tree(y) for y in value)
    if kind == "dict" and isinstance(value, dict):
        return {name: _tree(y) for name, y in value.items()}
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return slice(*map(_tree, value))
    if kind == "ellipsis":
        return ...
    if kind == "number" and value in ("inf", "-inf", "nan"):
        return float(value)
    return Named(kind, str(value))


class NumpyArrays:
    """The functions with which a replay handles arrays that NumPy reads."""

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def cast(self, x: Any, dtype: str) -> Any:
        x, kind = self.numpy(x), np.dtype(getattr(ml_dtypes, dtype, dtype))
        return x.astype(kind) if _is_number(x.dtype) and _is_number(kind) else x

    def part(self, x: Any, axis: int, start: int, length: int) -> Any:
        return self.numpy(x).take(range(start, start + length), axis)

    def put(self, x: Any, spans: Sequence[Span], part: Any) -> Any:
        x = self.numpy(x).copy()
        x[within(x.ndim, spans)] = part
        return x

    def shaped(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.numpy(x).reshape(shape)

    def joined(self, parts: Sequence[Any], axis: int) -> Any:
        return np.concatenate([self.numpy(x) for x in parts], axis)

    def nudged(self, x: Any, seed: int) -> Any:
        x = self.numpy(x)
        if not _is_number(x.dtype) or x.dtype.itemsize == 1:
            return x
        random = np.random.default_rng(seed)
        chosen = random.random(x.shape) < 1 / 64
        step = np.where(random.random(x.shape) < 0.5, 1, -1) * chosen
        bits = np.dtype(f"i{x.dtype.itemsize}")
        moved = (np.asarray(x, order="C").view(bits) + step.astype(bits)).view(x.dtype)
        return np.where(np.isfinite(moved) & (x != 0), moved, x)

    def shifted(self, x: Any, new: Any, old: Any) -> Any:
        x, new, old = (self.numpy(y) for y in (x, new, old))
        wide = [y.astype(np.float64) for y in (x, new, old)]
        with np.errstate(invalid="ignore"):  # of infinite numbers
            moved = (wide[0] + (wide[1] - wide[2])).astype(new.dtype)
        return np.where(x == old, new, moved)


def _is_number(dtype: np.dtype) -> bool:
    return np.issubdtype(dtype, np.floating) or hasattr(ml_dtypes, dtype.name)
