"""Calls of a function of NumPy arrays: float32 arrays, whatever type their numbers are of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from roundscope.attention.testing.calls import (
    Inputs,
    Outputs,
    check_kept,
    first_of,
    parts_of,
)
from roundscope.emu.testing.foreign import ForeignError

if TYPE_CHECKING:
    from roundscope.attention.testing.foreign.user import Convention


def run(function: Callable[..., Any], c: "Convention", x: Inputs) -> Outputs:
    """Return the outputs of a user's function."""
    options = c.options(x)
    if x.mask is not None:
        options[c.names["mask"]] = x.mask.copy()
    given = [_turned(a, c.layout) for a in (x.q, x.k, x.v, x.do)]
    before = [a.tobytes() for a in given]
    q, k, v, do = given
    if c.is_own_backward:
        results = parts_of(function(q, k, v, **options | {c.names["do"]: do}))
    else:
        results = (first_of(function(q, k, v, **options)),)
    check_kept(before, (a.tobytes() for a in given))
    named = zip(("out", "dq", "dk", "dv"), results, strict=False)
    return Outputs(**{name: _float32(a, c.layout) for name, a in named})


def _turned(x: np.ndarray, layout: str) -> np.ndarray:
    """Return a copy in the other layout, or in the same."""
    return np.array(x.swapaxes(1, 2) if layout == "BNTH" else x, order="C")


def _float32(x: Any, layout: str) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray) or np.iscomplexobj(x):
        what = "complex" if np.iscomplexobj(x) else "masked"
        raise ForeignError("kernel", f"returned a {what} array; return real numbers")
    array = np.asarray(x)
    if array.dtype.kind not in "fV":  # those of ml_dtypes are V
        raise ForeignError("kernel", f"returned an array of {array.dtype}; return floats")
    if array.ndim != 4:
        raise ForeignError("kernel", f"returned shape {array.shape}, must have four axes")
    return _turned(array.astype(np.float32), layout)
