"""Calls of a function of NumPy arrays: float32 arrays, whatever type their numbers are of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs

if TYPE_CHECKING:
    from roundscope.attention.testing.user import Convention


def run(function: Callable[..., Any], c: "Convention", x: Inputs) -> Outputs:
    """Return the outputs of a user's function; NumPy's warnings of its numbers are left out."""
    with np.errstate(all="ignore"):
        return _run(function, c, x)


def _run(function: Callable[..., Any], c: "Convention", x: Inputs) -> Outputs:
    options = c.options(x)
    if x.mask is not None:
        options[c.names["mask"]] = x.mask
    q, k, v, do = (_turned(a, c.layout) for a in (x.q, x.k, x.v, x.do))
    if not c.is_own_backward:
        result = function(q, k, v, **options)
        out = result[0] if isinstance(result, (tuple, list)) else result
        return Outputs(out=_float32(out, c.layout))
    results = function(q, k, v, **options | {c.names["do"]: do})
    out, dq, dk, dv = (_float32(a, c.layout) for a in results)
    return Outputs(out=out, dq=dq, dk=dk, dv=dv)


def _turned(x: np.ndarray, layout: str) -> np.ndarray:
    """Return a copy in the other layout, or in the same: a function may write into it."""
    return np.array(x.swapaxes(1, 2) if layout == "BNTH" else x, order="C")


def _float32(x: Any, layout: str) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray) or np.iscomplexobj(x):
        what = "complex" if np.iscomplexobj(x) else "masked"
        raise TypeError(f"the kernel returned a {what} array; return real numbers")
    return _turned(np.asarray(x).astype(np.float32), layout)
