"""Named arrays of a safetensors or npz file, read one at a time, and scales of q, k and v.

What else the arrays mean, `tensors.layers` decides. A tensor that low-precision serving stored with
a scale is that scale times the stored numbers, as a kernel takes it. The scale is a number of the
metadata or a tensor, rounded to binary32; products are exact in binary64 and rounded once to that.
"""

import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from roundscope.tools.errors import UsageError, bad, one_line
from roundscope.tools.tensors.overrides import number_given

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
    "description",
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
        repair = "give bool, True where a query sees a key, or a bias as `bias`"
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
        repair = f"neither safetensors nor npz, or cut short ({one_line(error)})"
        if "incomplete" in str(error).lower() or "buffer" in str(error).lower():
            repair = f"truncated or damaged ({one_line(error)}); copy it again"
        raise bad("FILE", str(path), repair) from None
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
                repair = "written by torch.save; save the tensors by safetensors.torch.save_file"
                raise bad("FILE", str(path), repair)
            text = {n for n in file.files if n.rpartition(".")[2] in TEXTS}
            arrays = [n for n in file.files if n not in text]
            metadata = {n: str(_entry(path, file, n)) for n in text}
            yield TensorFile(
                arrays, metadata, lambda name: _typed(name, _entry(path, file, name), metadata)
            )
    except (zipfile.BadZipFile, EOFError) as error:
        repair = f"truncated or damaged ({one_line(error)}); copy it again"
        raise bad("FILE", str(path), repair) from None


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
            version, read = np.lib.format.read_magic(stream), np.lib.format.read_array_header_2_0
            if version == (1, 0):
                read = np.lib.format.read_array_header_1_0
            shape, _, dtype = read(stream)
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


def float32(name: str, array: np.ndarray) -> np.ndarray:
    """Return numbers in binary32, rounded to nearest. Raises UsageError for anything but floats."""
    if array.dtype.kind == "c":
        repair = "complex numbers, which attention here does not have; save its real part alone"
        raise bad(f"tensor {name}", str(array.dtype), repair)
    try:
        ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]  # it has no annotations
    except ValueError:
        raise bad(
            f"tensor {name}", str(array.dtype), f"not a floating-point type; save {FLOATS}"
        ) from None
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array.astype(np.float32))


# of q, k or v, or of k and v: k_scale, k_descale, k_cache_scale, scale_k, kv_scale ...
SCALE = re.compile(
    r"(?P<own>q|k|v|kv)(_cache)?_(de|dequant_)?scales?|(de)?scales?_(?P<of>q|k|v|kv)(_cache)?"
)
LIKE_SCALE = re.compile(
    r".*(scale|zero_?point).*"
)  # what multiplies or shifts numbers in another way
OF_CALL = ("scale_s", "scale_o")  # of P and of the output: numbers that cuDNN's FP8 kernel takes
SHAPES_OF_SCALES = (
    "a number, (heads,), (batch, heads), the axes of the tensor without features, or four axes, of"
    " which each is 1, whole, or divides the tensor's into blocks"
)


def is_scale(name: str) -> bool:
    """Return whether a name without its layer is that of a scale that is read."""
    return name in ("scale", *OF_CALL) or SCALE.fullmatch(name) is not None


def check_scales(file: TensorFile, prefix: str) -> None:
    """Raise UsageError for scales and zero points of a layer or of its file that are not read."""
    for kind, names in (("tensor", file.names), ("metadata", file.metadata)):
        for name in names:
            own, _, last = name.rpartition(".")
            if own in ("", prefix) and LIKE_SCALE.fullmatch(last) and not is_scale(last):
                repair = (
                    "a scale that is not read; write what q, k or v are to be multiplied by as"
                    " q_scale, k_scale or v_scale, what the scores are as scale, what P and the"
                    " output were multiplied by as scale_s and scale_o, or leave it out"
                )
                raise bad(kind, name, repair)


class Read(NamedTuple):
    """A tensor times its scale.

    numbers  in binary32
    kind     the type in which it is stored, by its name in NumPy
    note     what to say of it, or None
    scale    its scale as it is stored, binary32, or None
    """

    numbers: np.ndarray
    kind: str
    note: str | None
    scale: np.ndarray | None = None


def scaled(
    file: TensorFile, prefix: str, role: str, layout: str, *, has_scales: bool = True
) -> Read:
    """Return a tensor in binary32 times its scale.

    has_scales: whether it is multiplied by its scale; integers are taken as they are, if not.

    Raises UsageError for numbers or a scale that cannot be read, and for two scales.
    """
    name = f"{prefix}.{role}" if prefix else role
    array = file.array(name)
    scales = list(_scales(file, prefix, role))
    if not has_scales:
        has = f"although the file has {scales[0][0]}" if scales else ""
        note = f"{name} as it is stored, as asked, {has}" if has else None
        return Read(_as_stored(name, array), str(array.dtype), note)
    if len(scales) > 1:
        both = " and ".join(sorted(n for n, _ in scales))
        raise bad(f"tensor {name}", both, "two scales of one tensor; leave one of them")
    if array.dtype in SHORT and not scales and role in ("q", "k", "v"):
        repair = (
            f"integers without a scale; add {role}_scale, which multiplies them, or save floats"
        )
        raise bad(f"tensor {name}", str(array.dtype), repair)
    kind, wide = str(array.dtype), _as_stored(name, array) if scales else float32(name, array)
    if not scales:
        changed = int((wide.astype(array.dtype) != array).sum()) if kind == "float64" else 0
        note = f"{changed} of {array.size} numbers of {name}, float64, are rounded to float32"
        return Read(wide, kind, note if changed else None)
    [(said, scale)] = scales
    if not np.isfinite(scale).all() or not scale.all():
        raise bad("scale", said, "has a number that is not finite, or 0")
    factor = _broadcast(said, scale, wide.shape, layout)
    products = wide.astype(np.float64) * factor
    with np.errstate(over="ignore"):
        found = products.astype(np.float32)
    changed = int((found != products).sum() - np.isnan(products).sum())
    how = f"{scale.item():.6g}" if scale.size == 1 else f"of shape {scale.shape}"
    note = f"{name} is its {kind} numbers times {said} {how}"
    note = f"{note}, {changed} products rounded to float32" if changed else note
    return Read(found, kind, note, scale)


def scales_of_call(file: TensorFile, prefix: str) -> dict[str, np.ndarray]:
    """Return scale_s and scale_o of a layer, binary32 numbers, by name; its own come first.

    Raises UsageError for a scale that is no positive number, or of P no power of two.
    """
    found: dict[str, np.ndarray] = {}
    for name in OF_CALL:
        own = f"{prefix}.{name}" if prefix else name
        full = next((n for n in (own, name) if n in (*file.names, *file.metadata)), None)
        if full is None:
            continue
        if full in file.names:
            array = file[full]
            number = float(array.item()) if array.size == 1 else math.nan
        else:
            number = number_given(f"metadata {full}", file.metadata[full], "such as 256")
        if not 0.0 < number < math.inf:
            raise bad("scale", full, "must be one positive number, such as 256")
        if name == "scale_s" and (math.frexp(number)[0] != 0.5 or number < 1.0):
            repair = "a power of two from 1, such as 256, is what plans have (offset)"
            raise bad(f"scale {full}", number, repair)
        found[name] = np.array(number, np.float32)
    return found


def _as_stored(name: str, array: np.ndarray) -> np.ndarray:
    """Return the numbers of a tensor in binary32, short integers too."""
    return array.astype(np.float32) if array.dtype in SHORT else float32(name, array)


def _scales(file: TensorFile, prefix: str, role: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and the arrays of the scales of a tensor, float32; its layer's come first."""
    own = {n.rpartition(".")[2]: n for n in (*file.names, *file.metadata) if _is_of(n, "", role)}
    own |= {n.rpartition(".")[2]: n for n in file.metadata if _is_of(n, prefix, role)}
    own |= {n.rpartition(".")[2]: n for n in file.names if _is_of(n, prefix, role)}
    for name in own.values():
        if name in file.names:
            yield name, file[name]
        else:
            number = number_given(f"metadata {name}", file.metadata[name], "such as 0.25")
            yield name, np.array(number, np.float32)


def _is_of(name: str, prefix: str, role: str) -> bool:
    own, _, last = name.rpartition(".")
    match = SCALE.fullmatch(last)
    return own == prefix and match is not None and role in (match["own"] or match["of"])


def _broadcast(name: str, scale: np.ndarray, shape: tuple[int, ...], layout: str) -> np.ndarray:
    """Return a scale in binary64 that broadcasts to a tensor of this shape, in its layout."""
    if len(shape) == 3:  # of packed sequences, which are one batch entry
        packed: np.ndarray = _broadcast(name, scale, (1, *shape), layout)[0]
        return packed
    heads = 1 if layout == "BNTH" else 2
    wide = scale.astype(np.float64)
    if scale.size == 1 or len(shape) != 4:  # which the caller refuses
        return wide.reshape(-1)[:1].reshape((1,) * len(shape))
    if scale.ndim < 3:
        wide = wide.reshape((1,) * (2 - scale.ndim) + scale.shape)
        wide = np.expand_dims(wide, (3 - heads, 3))
    elif scale.ndim == 3:
        wide = wide[..., None]
    is_able = wide.ndim == 4 and all(
        n and m % n == 0 for n, m in zip(wide.shape, shape, strict=True)
    )
    if not is_able:
        repair = f"fits no tensor {shape}, {layout}: give {SHAPES_OF_SCALES}"
        raise bad(f"scale {name}", scale.shape, repair)
    for axis, (n, m) in enumerate(zip(wide.shape, shape, strict=True)):
        if 1 < n < m:
            wide = np.repeat(wide, m // n, axis)
    return wide
