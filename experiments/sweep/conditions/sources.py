"""The digest and the sizes of a file of tensors that a sweep uses as input.

Each file is read once per process.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from roundscope.emu.formats.format import unknown
from roundscope.experiments.errors import UsageError, bad


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """The sizes of one layer of a file.

    content      SHA-256 of the file
    T, S, N, H   queries, keys, query heads, features of a head
    key_heads    number of key heads;  width: features of v;  has_do: whether the layer has do
    """

    content: str  # SHA-256 of the file
    T: int
    S: int
    N: int
    H: int
    key_heads: int
    width: int
    has_do: bool


@functools.cache
def sizes_of(name: str) -> FileSizes | None:
    """Return the sizes of an input that is a file, None for a drawn one.

    Raises UsageError for an input that is neither, or a file that cannot be used.
    """
    from roundscope.attention.testing.families import FAMILIES
    from roundscope.experiments.sweep.conditions.inputs import SAMPLE, file_of

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
    (t, n, h), (s, g, width), has_do = _layer(name, path, layer)
    return FileSizes(
        content=_digest(path), T=t, S=s, N=n, H=h, key_heads=g, width=width, has_do=has_do
    )


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


def _layer(
    name: str, path: Path, layer: str | None
) -> tuple[tuple[int, int, int], tuple[int, int, int], bool]:
    """Return ((T, N, H), (S, key heads, features of v), has do) of a layer.

    It is the one named, or the first.
    """
    from roundscope.experiments.tensors.layers import REPAIR, read_layers

    try:
        x = read_layers(path, layer=layer)[0]
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
    return x.q.shape[1:], x.v.shape[1:], x.do is not None


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
