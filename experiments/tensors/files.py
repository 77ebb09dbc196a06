"""Named arrays of a safetensors or npz file, read one at a time.

What the arrays mean is not decided here; `tensors.layers` does that.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes  # safetensors returns BF16 to NumPy only after this import
import numpy as np

from roundscope.experiments.errors import bad, one_line

TEXTS = (
    "layout",
    "scale",
    "source",
    "is_causal",
    "name",
    "implementation",
    "window",
    "softcap",
    "dropout",
    "notes",
)
"""Entries of an npz file that are metadata, `<layer>.scale` and so on too."""


class TensorFile:
    """An open file: its `names`, its `metadata` (str to str), `file[name]` as a float32 array."""

    def __init__(
        self, names: list[str], metadata: dict[str, str], get: Callable[[str], np.ndarray]
    ) -> None:
        self.names, self.metadata, self._get = names, metadata, get

    def __getitem__(self, name: str) -> np.ndarray:
        return _float32(name, self._get(name))

    def bools(self, name: str) -> np.ndarray:
        """Return an array of bool, such as a mask.

        Raises UsageError for an array of anything else.
        """
        array = self._get(name)
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
    """Open the safetensors or npz file at `path`; its content decides which of them it is.

    Raises UsageError if there is no such file or if it is damaged.
    """
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
        yield TensorFile(list(file.keys()), dict(file.metadata() or {}), file.get_tensor)


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
            yield TensorFile(
                arrays, {n: str(file[n]) for n in text}, lambda name: _entry(path, file, name)
            )
    except (zipfile.BadZipFile, EOFError) as error:
        raise bad(
            "FILE", str(path), f"truncated or damaged ({one_line(error)}); copy it again"
        ) from None


def _entry(path: Path, file: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return an entry of an npz file. Raises UsageError for one that only pickle could read."""
    try:
        return file[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise bad(
            f"FILE {path}: tensor",
            name,
            "an array of Python objects, not of numbers; save float16, bfloat16 or float32",
        ) from None


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array in binary32; float64 numbers are rounded to nearest.

    An npz file keeps bfloat16 as raw 2-byte words, which are read as such.
    """
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    try:
        ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]  # it has no annotations
    except ValueError:
        repair = "not a floating-point type; save float16, bfloat16 or float32"
        raise bad(f"tensor {name}", str(array.dtype), repair) from None
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array.astype(np.float32))
