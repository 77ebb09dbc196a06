"""The inputs and the outputs of one call of an attention kernel."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from roundscope.attention.inputs.alignment import Alignment
from roundscope.emu.testing.foreign import ForeignError

PARTS = ("out", "dq", "dk", "dv")  # of a function that is given dO
NAMES = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The arguments of one call of attention.

    Args:
        q, k, v: float32 arrays of BF16 numbers, (B, T, N, H).
        do: the gradient of the output, such an array too.
        scale: the factor of the scores.
        is_causal: whether a query sees only the keys up to its own position.
        window, softcap, sinks, mask: as in `roundscope.attend`; None for none, and most kernels
            support none.
        alignment: as in `roundscope.attend`; None is top-left, and nobody has said so.
        scales: as in `roundscope.attend`, (B, G), of a call whose q, k and v here are the stored
            numbers times descale_q, descale_k and descale_v; None for none.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray
    scale: float
    is_causal: bool
    window: int | None = None
    softcap: float | None = None
    sinks: np.ndarray | None = None
    mask: np.ndarray | None = None
    alignment: Alignment | None = None
    scales: Mapping[str, np.ndarray] | None = None

    def __repr__(self) -> str:
        """Return the shapes and the options, without the numbers of the arrays."""
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        told = [
            f"{name}={value.shape if isinstance(value, np.ndarray) else value}"
            for name, value in given
            if value is not None
        ]
        return f"Inputs({', '.join(told)})"

    @property
    def is_cut(self) -> bool:
        """Whether causality or a window hides keys from a query."""
        return self.is_causal or bool(self.window)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `roundscope.attend` other than the tensors."""
        return {
            name: getattr(self, name)
            for name in ("scale", "is_causal", "window", "softcap", "sinks", "mask", "alignment")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The results of a kernel: float32 arrays, None where it returned nothing.

    Args:
        out, dq, dk, dv: (B, T, N, H), as the kernel rounded them.
        lse: (B, N, T), the natural logarithm of the row sums.
    """

    out: np.ndarray
    lse: np.ndarray | None = None
    dq: np.ndarray | None = None
    dk: np.ndarray | None = None
    dv: np.ndarray | None = None

    def named(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the arrays that are present, with their names."""
        for name in NAMES:
            if (array := getattr(self, name)) is not None:
                yield name, array

    def heads(self, heads: slice) -> "Outputs":
        """Return the outputs of some heads of the first batch entry."""
        parts = {n: x[:1, heads] if n == "lse" else x[:1, :, heads] for n, x in self.named()}
        return Outputs(**parts)


def parts_of(results: Any) -> tuple[Any, ...]:
    """Return (out, dq, dk, dv) as a function that is given dO returned them.

    Raises:
        ForeignError: It returned something else.
    """
    if isinstance(results, (tuple, list)) and len(results) == len(PARTS):
        return tuple(results)
    kind = type(results).__name__
    size = f" of {len(results)}" if isinstance(results, (tuple, list)) else ""
    got = "None" if results is None else f"a {kind}{size}"
    raise ForeignError("kernel", f"returned {got}, must return (out, dq, dk, dv)")


def sums_of(result: Any, x: Inputs) -> Any:
    """Return what stands behind the output in a function's result, if it may be L; else None.

    L, the natural logarithm of the row sums, is (B, N, T), or (B, T, N) where N is not T. Anything
    of another shape is not L, and nobody asks about it.
    """
    if not isinstance(result, (tuple, list)) or len(result) < 2:
        return None
    batch, queries, heads, _ = x.q.shape
    given = getattr(result[1], "shape", None)
    if given is None or queries == heads:
        return None
    if tuple(given) == (batch, heads, queries):
        return result[1]
    return result[1].swapaxes(1, 2) if tuple(given) == (batch, queries, heads) else None


def first_of(result: Any) -> Any:
    """Return the output of a function that may return the sums of its rows as well.

    Raises:
        ForeignError: It returned no array.
    """
    out = result[0] if isinstance(result, (tuple, list)) and result else result
    if not hasattr(out, "dtype") or not hasattr(out, "shape"):
        got = "None" if out is None else f"a {type(out).__name__}"
        raise ForeignError("kernel", f"returned {got}, must return the output, an array")
    return out


def check_kept(before: Iterable[Any], after: Iterable[Any]) -> None:
    """Raise ForeignError if a function changed q, k, v or dO, by their bytes or versions."""
    for name, a, b in zip(("q", "k", "v", "do"), before, after, strict=False):
        if a != b:
            raise ForeignError("kernel", f"changes its input {name} in place; work on a copy")
