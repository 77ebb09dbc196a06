"""Named arrays of a safetensors or npz file, read one at a time.

What the arrays mean is not decided here; `tensors.layers` does that.
"""

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.tools.errors import UsageError, bad, one_line

TEXTS = (
    "layout",
    "scale",
    "source",
    "is_causal",
    "alignment",
    "name",
    "implementation",
    "window",
    "softcap",
    "dropout",
    "notes",
    "dtype",
)
"""Entries of an npz file that are metadata, `<layer>.scale` and so on too."""
TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "C64": np.complex64,
}
"""The types of safetensors in whole bytes (safetensors/src/tensor.rs, `Dtype`, version 0.8); F4 has
two numbers in a byte, the first in the low bits, as torch.float4_e2m1fn_x2."""
SHORT = (np.int8, np.uint8, np.int16, np.uint16)  # integers that binary32 holds
SAVING = "np.savez writes no types of ml_dtypes; save safetensors"
FLOATS = "float64, float32, float16, bfloat16, or an FP8 or FP4 type of safetensors"


class TensorFile:
    """An open file: its `names`, its `metadata` (str to str), and its arrays.

    `file[name]` is an array in float32; `file.array(name)` is the same in its own type.
    """

    def __init__(
        self, names: list[str], metadata: dict[str, str], get: Callable[[str], np.ndarray]
    ) -> None:
        self.names, self.metadata, self.array = names, metadata, get

    def __getitem__(self, name: str) -> np.ndarray:
        return float32(name, self.array(name))

    def bools(self, name: str) -> np.ndarray:
        """Return an array of bool, such as a mask. Raises UsageError for anything else."""
        array = self.array(name)
        if array.dtype == bool:
            return np.ascontiguousarray(array)
        repair = "give bool, True where a query sees a key"
        if array.dtype.kind not in "iu":
            repair = (
                "a bias that is added to the scores, which Roundscope has not; where it only closes"
                " keys, write it as bool, True where a query sees a key"
            )
        raise bad(f"tensor {name}", str(array.dtype), repair)

    def said(self, prefix: str, name: str) -> str | None:
        """Return the metadata `<prefix>.<name>`, else those of the file, `name`; None for none."""
        own = self.metadata.get(f"{prefix}.{name}" if prefix else name)
        return own if own is not None else self.metadata.get(name)


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a safetensors or npz file, as its content says. Raises UsageError where that fails."""
    path = Path(path)
    if path.is_dir():
        raise bad("FILE", str(path), "is a folder; give a safetensors or npz file in it")
    if not path.is_file():
        raise bad("FILE", str(path), "no such file; give a safetensors or npz file")
    with path.open("rb") as head:
        is_zip = head.read(4) == b"PK\x03\x04"
    with (_npz if is_zip else _safetensors)(path) as tensors:
        yield tensors


@contextmanager
def _safetensors(path: Path) -> Iterator[TensorFile]:
    from safetensors import SafetensorError, safe_open

    try:
        handle = safe_open(str(path), framework="numpy")
    except (SafetensorError, ValueError) as error:
        if "incomplete" in str(error).lower() or "buffer" in str(error).lower():
            raise bad(
                "FILE", str(path), f"truncated or damaged ({one_line(error)}); copy it again"
            ) from None
        raise bad(
            "FILE", str(path), f"neither safetensors nor npz, or cut short ({one_line(error)})"
        ) from None
    with handle as file:
        names, metadata = list(file.keys()), dict(file.metadata() or {})
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    yield TensorFile(names, metadata, lambda name: _tensor(path, 8 + size, name, header[name]))


def _tensor(path: Path, begin: int, name: str, about: dict[str, Any]) -> np.ndarray:
    """Return a tensor of a safetensors file in its own type; its header has been checked.

    begin: where the bytes of the tensors begin; about: what the header says of it
    """
    kind, (first, last) = about["dtype"], about["data_offsets"]
    data = np.fromfile(path, np.uint8, count=last - first, offset=begin + first)
    if kind == "F4":
        codes = np.stack([data & 15, data >> 4], axis=-1)
        return codes.reshape(about["shape"]).view(ml_dtypes.float4_e2m1fn)
    if kind not in TYPES:
        repair = f"packed numbers whose order in memory nothing defines; save {FLOATS}"
        if kind in ("F6_E2M3", "F6_E3M2"):
            repair += "; F8_E4M3 holds every F6_E2M3, and F8_E5M2 every F6_E3M2 number"
        raise bad(f"tensor {name}", kind, repair)
    array: np.ndarray = data.view(TYPES[kind]).reshape(about["shape"])
    return array


@contextmanager
def _npz(path: Path) -> Iterator[TensorFile]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if any(name.endswith("/data.pkl") for name in file.files):
                raise bad(
                    "FILE",
                    str(path),
                    "written by torch.save; save the tensors by safetensors.torch.save_file",
                )
            text = {n for n in file.files if n.rpartition(".")[2] in TEXTS}
            arrays = [n for n in file.files if n not in text]
            metadata = {n: str(_entry(path, file, n)) for n in text}
            yield TensorFile(
                arrays, metadata, lambda name: _typed(name, _entry(path, file, name), metadata)
            )
    except (zipfile.BadZipFile, EOFError) as error:
        raise bad(
            "FILE", str(path), f"truncated or damaged ({one_line(error)}); copy it again"
        ) from None


PROBLEMS = (  # what NumPy and zipfile raise for entries that somebody else wrote
    ValueError,
    TypeError,
    SyntaxError,
    KeyError,
    AttributeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
)


def _entry(path: Path, file: Any, name: str) -> np.ndarray:
    """Return an entry of an npz file. Raises UsageError for one that is no array of numbers."""
    where = f"FILE {path}: tensor"
    try:
        if name in file.zip.namelist():
            raise bad(where, name, "a file that is no array; write the file with np.savez")
        member = file.zip.getinfo(f"{name}.npy")
        with file.zip.open(member) as stream:
            shape, dtype = _header(stream)
        if dtype.hasobject:
            repair = "an array of Python objects, not of numbers; save float16, bfloat16 or float32"
            raise bad(where, name, repair)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            repair = f"its header says {shape} of {dtype}, more than it has; save it again"
            raise bad(where, name, repair)
        array: np.ndarray = file[name]
    except UsageError:
        raise
    except PROBLEMS as error:
        repair = f"cannot be read ({one_line(error)}); save it again with np.savez"
        if "descriptor" in str(error):  # such as '<f1' of float8_e5m2
            repair = f"{one_line(error)}: NumPy has no such type; {SAVING}"
        raise bad(where, name, repair) from None
    return array


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and the type that the header of an npy file says."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(stream)
    return shape, dtype


def _typed(name: str, array: np.ndarray, metadata: dict[str, str]) -> np.ndarray:
    """Return an array in the type that np.savez lost: as `dtype` says, of 2 bytes bfloat16."""
    if array.dtype.kind != "V":
        return array
    usual = "bfloat16" if array.dtype.itemsize == 2 else None
    said = metadata.get(f"{name}.dtype", metadata.get("dtype", usual))
    if said is None:
        repair = f"{SAVING}, or add an entry '{name}.dtype' with its name, such as float8_e4m3fn"
        raise bad(f"tensor {name}", array.dtype.str, repair)
    kind = getattr(ml_dtypes, said, None)
    if not isinstance(kind, type) or np.dtype(kind).itemsize != array.dtype.itemsize:
        repair = f"no type of ml_dtypes with {array.dtype.itemsize} bytes, such as float8_e4m3fn"
        raise bad(f"{name}.dtype", said, repair)
    return array.view(kind)


def is_float(dtype: np.dtype) -> bool:
    """Return whether a type is of floating-point numbers, of ml_dtypes too."""
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # it has no annotations
    except ValueError:
        return False
    return dtype.kind != "c"


def float32(name: str, array: np.ndarray) -> np.ndarray:
    """Return numbers in binary32, rounded to nearest. Raises UsageError for anything but floats."""
    if array.dtype.kind == "c":
        repair = "complex numbers, which attention here does not have; save its real part alone"
        raise bad(f"tensor {name}", str(array.dtype), repair)
    if not is_float(array.dtype):
        raise bad(f"tensor {name}", str(array.dtype), f"not a floating-point type; save {FLOATS}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array.astype(np.float32))
