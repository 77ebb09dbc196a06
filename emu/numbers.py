"""Checks of arguments that have to be numbers, whole numbers or arrays of numbers.

Numbers of Python and of NumPy are accepted alike; True and False never are.
"""

import math
import sys
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, cast

from roundscope.emu.shown import shown

SEED = "a seed is a whole number from 0 to 2^32 - 1"


def is_whole(x: Any) -> bool:
    """Return whether x is a whole number of Python or NumPy; booleans and arrays are not."""
    return isinstance(x, Integral) and not isinstance(x, bool)


def check_whole(name: str, x: Any, repair: str) -> None:
    """Raise TypeError unless x is a whole number; the message names the argument and the fix."""
    if not is_whole(x):
        raise TypeError(f"{name}={shown(x)}: give a whole number; {repair}")


def check_seed(name: str, x: Any) -> None:
    """Raise ValueError unless x is a seed, a whole number from 0 to 2^32 - 1."""
    if not (is_whole(x) and 0 <= x < 2**32):
        raise ValueError(f"{name}={shown(x)}: {SEED}")


def is_known_whole(x: Any) -> bool:
    """Return whether x is a whole number, or an array without axes of one that is not traced."""
    return is_whole(x) or (_is_scalar(x) and x.dtype.kind in "iu")


def is_known_number(x: Any) -> bool:
    """Return whether x is a real number, or an array without axes of one that is not traced."""
    if isinstance(x, Real | Decimal):
        return not isinstance(x, bool)
    return _is_scalar(x) and (x.dtype.kind in "iu" or "float" in str(x.dtype))


def as_float(x: Any) -> float:
    """Return a number as a float; one beyond binary64 is infinite."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _is_scalar(x: Any) -> bool:
    """Return whether x is an array without axes, or a number, of NumPy or JAX, of known value."""
    import numpy as np

    if isinstance(x, np.ndarray | np.generic):
        return x.ndim == 0 and not isinstance(x, np.ma.MaskedArray)
    jax: Any = sys.modules.get("jax")
    if jax is None or not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer):
        return False
    return x.ndim == 0 and hasattr(x.dtype, "kind") and not x.is_deleted()


def check_array(name: str, x: Any) -> None:
    """Raise TypeError or ValueError for an array whose numbers are gone, hidden or none.

    These are masked arrays, deleted arrays and keys of JAX, and tensors of PyTorch that are sparse,
    nested, quantized or without memory. What is no array at all passes.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ma.MaskedArray):
        raise TypeError(
            f"{name}: a masked array, whose mask would be lost; give {name}.filled(0) and, for keys"
            " that no query sees, the argument mask"
        )
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        if not hasattr(x.dtype, "kind"):
            raise TypeError(f"{name}: random keys of JAX, must be numbers; jax.random.normal draws")
        if x.is_deleted():
            raise ValueError(f"{name}: a deleted JAX array, which a program took over; give a copy")
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, getattr(torch, "Tensor", ())):
        return
    x = cast(Any, x)
    if x.is_nested:
        raise TypeError(f"{name}: a nested tensor, must be one of one shape; x.to_padded_tensor(0)")
    if x.layout is not torch.strided:
        raise TypeError(f"{name}: a sparse tensor, must be dense; {name}.to_dense() makes one")
    if x.is_quantized:
        raise TypeError(f"{name}: a quantized tensor, must be of floats; {name}.dequantize()")
    if x.is_meta:
        raise ValueError(
            f"{name}: on meta, where it holds no numbers; give one on a CPU or a CUDA device"
        )


def check_count(name: str, x: Any, least: int = 1, repair: str = "", most: int = 2**31) -> None:
    """Raise TypeError or ValueError unless x is a whole number from `least` to below `most`."""
    check_whole(name, x, repair or f"it is {least} or more")
    if not least <= x < most:
        also = f"; {repair}" if repair else ""
        raise ValueError(f"{name}={shown(x)}: must be {least} or more, and below {most}{also}")


def check_real(name: str, x: Any, low: float, high: float, repair: str) -> None:
    """Raise TypeError or ValueError unless x is a number between two, which are not allowed."""
    if not is_known_number(x):
        raise TypeError(f"{name}={shown(x)}: give a number; {repair}")
    if not low < as_float(x) < high:
        raise ValueError(f"{name}={shown(x)}: {repair}")


def check_truth(name: str, x: Any) -> None:
    """Raise TypeError unless x is True or False; anything else would be one of them by accident."""
    if type(x).__name__ not in ("bool", "bool_"):  # of Python or NumPy
        raise TypeError(f"{name}={shown(x)}: give True or False")


def check_text(name: str, x: Any, such: str) -> None:
    """Raise TypeError unless x is a text."""
    if not isinstance(x, str):
        raise TypeError(f"{name}={shown(x)}: give a text, such as {such!r}")


def listed(name: str, x: Any, such: str) -> list[Any]:
    """Return what a collection holds; raise TypeError for a text and for what is none."""
    if not isinstance(x, str | bytes) and not hasattr(x, "dtype"):
        try:
            return list(x)
        except TypeError:
            pass
    raise TypeError(f"{name}={shown(x)}: give {such}")
