"""Reading what a user's cast returns: numbers, or codes, of NumPy, ml_dtypes, JAX or PyTorch."""

from typing import Any

import numpy as np

from roundscope.emu.blocks.format import INT8
from roundscope.emu.formats.codes import decode
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.tensors import is_tensor
from roundscope.emu.testing.casts.records import Function, Numbers
from roundscope.emu.testing.foreign import ForeignError, call_foreign

_OF_TORCH = {
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz",
    "float8_e8m0fnu": "e8m0fnu",
    "float4_e2m1fn_x2": "e2m1fn",
}


def call(function: Function, x: np.ndarray) -> Any:
    """Return what the function returns for an array, which it is given as a copy.

    Raises:
        ForeignError: the function raised an error, or did what no cast may do.
    """
    try:
        return call_foreign(function, x.copy(), what="function")
    except ForeignError as error:
        given = f"{error.words} (it was given float32 numbers of shape {x.shape})"
        raise ForeignError("function", given, error.is_refusal) from error


def numbers_of(a: Any, f: Format, shape: tuple[int, ...], what: str) -> Numbers:
    """Return the float64 numbers of an array that a function returned.

    Args:
        a: the array. Floats of any width are numbers. Whole numbers are codes of the format; codes
            of four bits may be packed in pairs along the last axis, the first in the low bits.
        f: the format of the numbers.
        shape: the shape that the array must have.
        what: the name of the array in an error message.

    Raises:
        ForeignError: the array is not of floats or codes, or has another shape.
    """
    x, codes = _plain(a, f)
    if x.dtype.kind not in "fiu" and not _is_narrow(x.dtype):
        raise ForeignError(what, f"dtype {x.dtype}, must be an array of floats or of codes")
    packed = codes is not None and f.bits == 4 and x.size * 2 == int(np.prod(shape))
    if packed:
        x = np.stack([x & 15, x >> 4], axis=-1)
    if x.size != int(np.prod(shape)):
        raise ForeignError(what, f"shape {np.shape(a)}, must be {shape}")
    x = x.reshape(shape)
    return x.astype(np.float64) if codes is None else _decoded(x, codes)


def in_words(a: Any, f: Format) -> str:
    """Return what an array holds in words, such as "codes (uint8)"."""
    x, codes = _plain(a, f)
    name = str(a.dtype).removeprefix("torch.") if hasattr(a, "dtype") else str(x.dtype)
    of_integers = codes is not None and not name.startswith("float")
    return f"{'codes' if of_integers else 'numbers'} ({name})"


def _plain(a: Any, f: Format) -> tuple[np.ndarray, Format | None]:
    """Return an array of NumPy, and the format of its codes if it does not hold numbers."""
    if is_tensor(a):
        return _of_tensor(a, f)
    if isinstance(a, np.ma.MaskedArray):
        raise ForeignError("result", "a masked array; return a plain one, as with .filled()")
    x = np.asarray(a)
    if x.dtype.kind in "iu" and not _is_narrow(x.dtype):
        x = np.ascontiguousarray(x)
        return x.view(f"u{x.dtype.itemsize}"), f
    return x, None


def _of_tensor(a: Any, f: Format) -> tuple[np.ndarray, Format | None]:
    import torch

    a, name = a.detach().cpu(), str(a.dtype).removeprefix("torch.")
    if name in _OF_TORCH:
        return a.contiguous().view(torch.uint8).numpy(), format_named(_OF_TORCH[name])
    if a.is_floating_point():
        return (a if a.element_size() >= 4 else a.float()).numpy(), None
    return _plain(a.numpy(), f)


def _is_narrow(dtype: np.dtype) -> bool:
    """Return whether a dtype is a float of ml_dtypes, whose kind may be that of raw bytes."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _decoded(codes: np.ndarray, f: Format) -> Numbers:
    from roundscope.emu.backends.numba.ops import numpy_ops

    if f == INT8:
        numbers: Numbers = codes.astype(np.uint8).view(np.int8).astype(np.float64) / 64.0
        return numbers
    found: Numbers = decode(numpy_ops(), codes.astype(np.int64), f)
    return found
