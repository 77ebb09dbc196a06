"""The inputs of a sweep: named seeded families, each for one mechanism, and tensors from files."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.alignment import Alignment, alignment_given
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.tools.errors import bad
from roundscope.tools.sweep.conditions.cell import Cell, entries
from roundscope.tools.tensors.layers import read_layers, sample_path

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
    """Return (path, layer or None) of an input that is no family.

    It is written sample, sample:LAYER, PATH or PATH:LAYER.
    """
    path, _, layer = name.rpartition(":")
    if not path or Path(name).is_file():
        path, layer = name, ""
    return sample_path() if path == SAMPLE else Path(path), layer or None


def _from_file(name: str, cell: Cell) -> Inputs:
    """Return the first T queries, S keys, N heads and batch entries of a layer, as the cell asks.

    The layer is the one named, or the first; the values are float32 as in the file. Mask and sinks
    are there if the cell has them.
    """
    from roundscope.tools.sweep.conditions.sources import check_fits, sizes_of

    path, layer = file_of(name)
    t, s, n, h = (int(cell[size]) for size in SIZES)
    if (sizes := sizes_of(name)) is not None:
        check_fits(name, sizes, {"T": t, "S": s, "N": n, "H": h}, bool(cell["backward"]))
    if cell.content not in ("", digest := hashlib.sha256(path.read_bytes()).hexdigest()):
        raise bad(
            "input",
            name,
            f"this file has SHA-256 {digest[:8]}, the sweep was planned with {cell.content[:8]};"
            " put that one back",
        )
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
