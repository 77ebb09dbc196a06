"""The inputs of a sweep: named seeded families, each for one mechanism, and tensors from files.

A file also says what its call had beside tensors. Each file is looked at once per process.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.inputs.alignment import Alignment, alignment_given
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.sweep.conditions.cell import OF_CALL, Cell, Value, entries, lacking
from roundscope.tools.tensors.layers import (
    REPAIR,
    Layer,
    check_unbiased,
    layer_names,
    read_layers,
    sample_path,
)

SAMPLE = "sample"
SIZES = ("T", "S", "N", "H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One cell's tensors, float64 and read-only.

    q, do   (B, T, N, H), B = 1 if drawn; do is None if a file has none
    k, v    (B, S, N, H); from a file, with its key heads
    scale   of the scores, from a file's metadata; None for 1 / sqrt(H)
    mask    (B or 1, N or 1, T, S) of bool, and sinks (N,), from a file; None for none
    alignment, window, softcap  as `examine` takes them; None for none

    Drawn values are BF16 numbers, so rounding the inputs to BF16 or wider changes none of them.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray | None
    scale: float | None = None
    mask: np.ndarray | None = None
    sinks: np.ndarray | None = None
    alignment: Alignment | None = None
    window: int | None = None
    softcap: float | None = None


def draw(cell: Cell) -> Inputs:
    """Return the inputs of a cell.

    Drawn ones depend on family, seed, N and H; more tokens only add rows. Raises UsageError for a
    file that cannot be read, is smaller than the cell asks for, or is not the one that the cell was
    planned with.
    """
    family, (t, s, n, h) = str(cell["input"]), (int(cell[size]) for size in SIZES)
    if family not in FAMILIES:
        return _from_file(family, cell)
    source = Source(family=family, seed=int(cell["seed"]), queries=t, keys=s, heads=n, features=h)
    x = {
        role: _frozen(tensor.astype(ml_dtypes.bfloat16))
        for role, tensor in FAMILIES[family](source).items()
    }
    return Inputs(q=x["q"], k=x["k"], v=x["v"], do=x["do"], **_of_call(cell))


def _of_call(cell: Cell) -> dict[str, Any]:
    """Return what a cell has of a call in words, as `examine` takes it; None for none."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "scale": float,
        "alignment": alignment_given,
        "window": int,
        "softcap": float,
    }
    return {
        name: None if cell[name] in (None, "none") else of(cell[name]) for name, of in kinds.items()
    }


def file_of(name: str) -> tuple[Path, str | None]:
    """Return (path, layer or None) of sample, sample:LAYER, PATH or PATH:LAYER."""
    path, _, layer = name.rpartition(":")
    if not path or Path(name).is_file():
        path, layer = name, ""
    return sample_path() if path == SAMPLE else Path(path), layer or None


def _from_file(name: str, cell: Cell) -> Inputs:
    """Return the first T queries, S keys, N heads and batch entries of a layer, as the cell asks.

    The layer is the one named, or the first; the values are float32 as in the file. Mask and sinks
    are there if the cell has them.
    """
    path, layer = file_of(name)
    t, s, n, h = (int(cell[size]) for size in SIZES)
    if (sizes := sizes_of(name)) is not None:
        check_fits(name, sizes, {"T": t, "S": s, "N": n, "H": h}, bool(cell["backward"]))
    if cell.content not in ("", digest := hashlib.sha256(path.read_bytes()).hexdigest()):
        repair = f"this file has SHA-256 {digest[:8]}, the sweep was planned with"
        raise bad("input", name, f"{repair} {cell.content[:8]}; put that one back")
    x = read_layers(path, layer=layer)[0]
    g = max(1, n * x.k.shape[2] // x.q.shape[2])
    b, call = entries(cell), _of_call(cell)
    do = None if x.do is None else _frozen(x.do[:b, :t, :n])
    has_mask, has_sinks = (cell[name] is not None for name in ("mask", "sinks"))
    return Inputs(
        q=_frozen(x.q[:b, :t, :n]),
        k=_frozen(x.k[:b, :s, :g]),
        v=_frozen(x.v[:b, :s, :g]),
        do=do,
        mask=x.mask[:b, :n, :t, :s] if has_mask and x.mask is not None else None,
        sinks=x.sinks[:n] if has_sinks and x.sinks is not None else None,
        **call | {"scale": x.scale if cell["scale"] is None else call["scale"]},
    )


def _frozen(x: np.ndarray) -> np.ndarray:
    """Return x as read-only float64 with a batch axis in front; inputs are shared between cells."""
    x = np.ascontiguousarray(x if x.ndim == 4 else x[None], dtype=np.float64)
    x.setflags(write=False)
    return x


def number_words(number: float) -> str:
    """Return the shortest text of a number: 2 for 2.0, and every digit that it needs."""
    return repr(number).removesuffix(".0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """The sizes of one layer of a file, and what the file says of its call.

    content      SHA-256 of the file
    T, S, N, H   queries, keys, query heads, features of a head
    key_heads    number of key heads;  width: features of v;  has_do: whether the layer has do
    causal       whether the call was causal; None if the file does not say
    says         what it has of `cell.OF_CALL`, in the words of these axes; "file" is a tensor in it
    notes        what else a reader of the results should know of the file
    types        the types of q, k and v in the file, by their names in NumPy
    """

    content: str
    T: int
    S: int
    N: int
    H: int
    key_heads: int
    width: int
    has_do: bool
    causal: bool | None = None
    says: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@functools.cache
def sizes_of(name: str) -> FileSizes | None:
    """Return the sizes of a file, None for a drawn input. Raises UsageError for what is neither."""
    if name in FAMILIES:
        return None
    path, layer = file_of(name)
    if not path.is_file():
        if "/" in name or "." in name:
            raise bad("input", name, "no such file; give a safetensors or npz file, PATH[:LAYER]")
        known, other = (*FAMILIES, SAMPLE), "or a safetensors or npz file, PATH[:LAYER]"
        raise UsageError(unknown("input", name, known, other))
    x = _layer(name, path, layer)
    (b, t, n, h), (_, s, g, width) = x.q.shape, x.v.shape
    says = {
        "scale": None if x.scale is None else number_words(x.scale),
        "alignment": x.alignment,
        "window": None if x.window is None else str(x.window),
        "softcap": None if x.softcap is None else number_words(x.softcap),
        "mask": None if x.mask is None else "file",
        "sinks": None if x.sinks is None else "file",
        "batch": str(b) if b > 1 else None,
    }
    return FileSizes(
        content=_digest(path),
        T=t,
        S=s,
        N=n,
        H=h,
        key_heads=g,
        width=width,
        has_do=x.do is not None,
        causal=x.is_causal,
        says={axis: word for axis, word in says.items() if word is not None},
        notes=x.notes,
        types=x.types,
    )


def layers_of(name: str) -> list[str]:
    """Return the inputs that a name stands for: every layer of a file, or those of a pattern.

    A file of one layer is itself, and so is `sample`, its first layer. A name that is no file, or
    of a file that cannot be read, stays as it is; `sizes_of` says why.
    """
    path, layer = file_of(name)
    if name in (*FAMILIES, SAMPLE) or not path.is_file():
        return [name]
    try:
        names = layer_names(path, layer)
    except UsageError:
        return [name]
    whole = name if layer is None else name.removesuffix(f":{layer}")
    return [f"{whole}:{each}" for each in names] if len(names) > 1 else [name]


def told(
    name: str, file: FileSizes, parameters: Mapping[str, Value], more: str | None = None
) -> str:
    """Return what a file says of its call, and where a cell's parameters say otherwise, in words.

    It is empty where a file says nothing and is used whole. parameters: those of the cell; more:
    what else is to be said.
    """
    own = {size: str(getattr(file, size)) for size in ("T", "S", "N")}
    if file.causal is not None:
        own["causal"] = str(file.causal).lower()
    own |= file.says
    kept, changed = [], []
    for axis in (*own, *(axis for axis in OF_CALL if axis in parameters and axis not in own)):
        said, here = own.get(axis, lacking(axis)), parameters.get(axis)
        word = str(here).lower() if here is not None else said if axis == "scale" else lacking(axis)
        if word != said:
            changed.append(f"{axis}={word} (the file: {said})")
        elif axis not in ("T", "S", "N"):
            kept.append(axis if said == "file" else f"{axis}={said}")
    parts = [f"as the file says, {' '.join(kept)}"] if kept else []
    parts += [f"as asked, {', '.join(changed)}"] if changed else []
    parts += [*file.notes, *([more] if more else [])]
    return f"input {name}: {'; '.join(parts)}" if parts else ""


def check_fits(name: str, file: FileSizes, asked: dict[str, int], backward: bool) -> None:
    """Raise UsageError if a cell asks for more than the file has, or other features of a head."""
    for size in ("T", "S", "N"):
        if asked[size] > (there := getattr(file, size)):
            raise bad(size, asked[size], f"input {name} has {there}; ask for that or less")
    if asked["H"] != file.H:
        repair = f"input {name} has {file.H} features per head, which cannot be cut; leave H out"
        raise bad("H", asked["H"], repair)
    group = file.N // file.key_heads
    if asked["N"] > group and asked["N"] % group:
        repair = f"input {name} has {group} query heads per key head; ask for a multiple, or fewer"
        raise bad("N", asked["N"], repair)
    if backward and not file.has_do:
        repair = f"input {name} has no do; add it to the file, or sweep the forward alone"
        raise bad("backward", "true", repair)


def _layer(name: str, path: Path, layer: str | None) -> Layer:
    """Return the layer that is named, or the only one; of `sample` it is the first."""
    try:
        names = layer_names(path, layer)
        if len(names) == 1 or name == SAMPLE:
            repair = "run that, or give a file without it"
            return check_unbiased(read_layers(path, layer=names[0])[0], repair)
    except UsageError as error:
        save = "add an entry" if path.suffix == ".npz" else "save it with metadata"
        words = {  # of the error -> what holds for a sweep
            "give --layout BNTH": f"{save} layout=BNTH",
            "or --layout BTNH": "or layout=BTNH",
            REPAIR: f"{REPAIR} for a sweep compares numbers",
        }
        text = str(error)
        for old, new in words.items():
            text = text.replace(old, new)
        raise UsageError(f"input '{name}': {text}") from None
    has = f"has {len(names)} layers, {', '.join(names[:8])}"
    raise bad("input", name, f"{has}; name one of them, as in {path}:{names[0]}")


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
