"""What an assertion is given: arrays of any library as NumPy arrays, and the formats of dtypes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from roundscope.emu.blocks.codes import DTYPES, NUMPY
from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.libraries import numpy_array
from roundscope.emu.numbers import check_array
from roundscope.emu.roundings.modes import rounding
from roundscope.emu.tensors import is_tensor

CARRIERS = ("float32", "float64", "float16", "bfloat16")
_FORMATS = {dtype: name for name, dtype in DTYPES.items()} | {
    np.dtype(dtype).name: name for name, dtype in NUMPY.items() if name != "int8"
}
FORMATS = _FORMATS | {"float64": "fp64"}  # the format of every dtype that has one, by name


def numpy_of(x: Any, name: str) -> np.ndarray:
    """Return an array of any library as a NumPy array of the same shape, dtype and bits.

    The 16-bit and 8-bit floats of PyTorch become those of ml_dtypes. Raises TypeError for what does
    not make an array of real numbers.
    """
    check_array(name, x)
    array = _of_tensor(x, name) if is_tensor(x) else numpy_array(x, name)
    if array.dtype.name not in FORMATS and array.dtype.kind not in "iub":
        raise TypeError(
            f"{name}: dtype {array.dtype}, must be an array of floats of at most 64 bits or of"
            f" whole numbers; numpy.asarray({name}, 'float64') may make one"
        )
    return array


def floats_of(x: Any, name: str) -> np.ndarray:
    """Return an array of floats of any library as a NumPy array; raise TypeError for other dtypes.

    Python's whole numbers and lists of them become float64.
    """
    array = numpy_of(x, name)
    if array.dtype.kind in "iu" and not hasattr(x, "dtype"):
        return array.astype(np.float64)
    if array.dtype.name not in FORMATS:
        raise TypeError(
            f"{name}: dtype {array.dtype}, must be an array of floats;"
            f" {name}.astype('float32') makes one"
        )
    return array


def wide(x: np.ndarray) -> np.ndarray:
    """Return an array of floats in float64, exactly."""
    with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
        return x.astype(np.float64)


def format_of(dtype: np.dtype, format: str | Format | None = None) -> Format:
    """Return the format that is given, or else that of a dtype of floats."""
    if format is not None:
        return rounding(format).format
    return format_named(FORMATS[dtype.name])


def carrier_named(name: str) -> np.dtype:
    """Return the dtype of the numbers that are rounded; raise ValueError for an unknown name."""
    if not isinstance(name, str) or name not in CARRIERS:
        raise ValueError(unknown("carrier", name, CARRIERS))
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _of_tensor(x: Any, name: str) -> np.ndarray:
    torch = sys.modules["torch"]
    here = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dtype = str(here.dtype).removeprefix("torch.")
    if dtype not in DTYPES.values():
        try:
            plain: np.ndarray = here.numpy()
        except TypeError:
            raise TypeError(
                f"{name}: dtype {x.dtype}, which NumPy does not have; {name}.float() may make"
                " an array of it"
            ) from None
        return plain
    import ml_dtypes

    word = torch.int16 if here.element_size() == 2 else torch.uint8
    bits: np.ndarray = here.view(word).numpy()
    return bits.view(getattr(ml_dtypes, dtype))
