"""The digest, the sizes and the call of a file of tensors that a sweep uses as input.

Each file is read once per process.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.sweep.conditions.cell import OF_CALL, Value, lacking
from roundscope.tools.sweep.conditions.values import number_words

if TYPE_CHECKING:
    from roundscope.tools.tensors.layers import Layer


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

    content: str  # SHA-256 of the file
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
    """Return the sizes of an input that is a file, None for a drawn one.

    Raises UsageError for an input that is neither, or a file that cannot be used.
    """
    from roundscope.attention.testing.families import FAMILIES
    from roundscope.tools.sweep.conditions.inputs import SAMPLE, file_of

    if name in FAMILIES:
        return None
    path, layer = file_of(name)
    if not path.is_file():
        if "/" in name or "." in name:
            raise bad("input", name, "no such file; give a safetensors or npz file, PATH[:LAYER]")
        raise UsageError(
            unknown(
                "input", name, (*FAMILIES, SAMPLE), "or a safetensors or npz file, PATH[:LAYER]"
            )
        )
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
    from roundscope.attention.testing.families import FAMILIES
    from roundscope.tools.sweep.conditions.inputs import SAMPLE, file_of
    from roundscope.tools.tensors.layers import layer_names

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
    """Raise UsageError if a cell asks for more than the file has.

    T, S and N may be smaller than the file's; the features of a head cannot be cut.
    """
    for size in ("T", "S", "N"):
        if asked[size] > (there := getattr(file, size)):
            raise bad(size, asked[size], f"input {name} has {there}; ask for that or less")
    if asked["H"] != file.H:
        raise bad(
            "H",
            asked["H"],
            f"input {name} has {file.H} features per head, which cannot be cut; leave H out",
        )
    group = file.N // file.key_heads
    if asked["N"] > group and asked["N"] % group:
        raise bad(
            "N",
            asked["N"],
            f"input {name} has {group} query heads per key head; ask for a multiple, or fewer",
        )
    if backward and not file.has_do:
        raise bad(
            "backward",
            "true",
            f"input {name} has no do; add it to the file, or sweep the forward alone",
        )


def _layer(name: str, path: Path, layer: str | None) -> "Layer":
    """Return the layer that is named, or the only one; of `sample` it is the first."""
    from roundscope.tools.sweep.conditions.inputs import SAMPLE
    from roundscope.tools.tensors.layers import REPAIR, layer_names, read_layers

    try:
        names = layer_names(path, layer)
        if len(names) == 1 or name == SAMPLE:
            return read_layers(path, layer=names[0])[0]
    except UsageError as error:
        save = "add an entry" if path.suffix == ".npz" else "save it with metadata"
        words = {  # of the error -> what holds for a sweep
            "give --layout BNTH": f"{save} layout=BNTH",
            "or --layout BTNH": "or layout=BTNH",
            "layout None: the file's metadata has none": "the file names no layout",
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
