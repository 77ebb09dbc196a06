"""`Heads`: the arrays of several heads in place of the array of one, for the loops over tiles.

The heads of a call run in step: a loop over tiles is Python's once for all of them, and a program
computes a tile of each head in one call. The loops slice, stack and compare arrays, and `Heads`
does that for every head; what a step computes is done by programs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from roundscope.emu.backends.numba.ops import stack
from roundscope.emu.backends.ops import mapped, rebuilt
from roundscope.emu.backends.threads import thread_count

Result = TypeVar("Result")


class Heads(NDArrayOperatorsMixin):
    """Arrays of equal shapes, one of each head, that look like the array of one head.

    Functions of NumPy return what they return for each head, in another `Heads`. An argument that
    is no `Heads` is the same for every head.

    Example:
        >>> import numpy as np
        >>> x = Heads(np.arange(6).reshape(2, 3))
        >>> x.shape, x[0].each.tolist(), (x > np.array([0, 4, 4])).each.tolist()
        ((3,), [0, 3], [[False, False, False], [True, False, True]])
        >>> np.stack([x, x]).each.shape
        (2, 2, 3)
    """

    def __init__(self, each: np.ndarray) -> None:
        """Take arrays (heads, ...)."""
        self.each = each

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of one head."""
        return self.each.shape[1:]

    @property
    def ndim(self) -> int:
        """The number of axes of the array of one head."""
        return self.each.ndim - 1

    def __getitem__(self, where: Any) -> "Heads":
        own = where if isinstance(where, tuple) else (where,)
        return Heads(self.each[(slice(None), *own)])

    def reshape(self, *shape: int) -> "Heads":
        """Return the entries of each head, in the same order, in another shape."""
        return Heads(self.each.reshape(len(self.each), *shape))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        axes = max(x.ndim if isinstance(x, Heads) else np.ndim(x) for x in inputs)
        return Heads(getattr(ufunc, method)(*(_widened(x, axes) for x in inputs), **kwargs))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> "Heads":
        count = len(self.each)
        if function is np.stack and len(args) == 1 and not kwargs:  # what loops do most
            parts = [x.each if isinstance(x, Heads) else x for x in args[0]]
            first = parts[0].dtype
            dtype = first if first.names else np.result_type(*parts)
            plain = f"V{dtype.itemsize}" if dtype.names else dtype  # not copied field by field
            stacked = np.empty((count, len(parts), *self.shape), plain)
            for n, part in enumerate(parts):
                stacked[:, n] = part.view(plain) if dtype.names else part
            return Heads(stacked.view(dtype))
        return Heads(np.stack([function(*of_head(args, h), **kwargs) for h in range(count)]))


def _widened(x: Any, axes: int) -> Any:
    """Return the arrays of heads with so many axes after the first, as NumPy would add them."""
    if not isinstance(x, Heads):
        return x
    return x.each.reshape(len(x.each), *(1,) * (axes - x.ndim), *x.shape)


def count(xs: Sequence[Any]) -> int:
    """Return how many heads the arrays of `Heads` have; 0 if none is a `Heads`."""
    return next((len(x.each) for x in xs if isinstance(x, Heads)), 0)


def of_head(x: Any, h: int) -> Any:
    """Return an array or a structure of arrays of head h; what is no `Heads` as it is."""
    return mapped(lambda part: part.each[h] if isinstance(part, Heads) else part, x)


def together(xs: Sequence[Any]) -> Any:
    """Return structures of arrays, one of each head, as a structure of `Heads`."""
    return mapped(Heads, stack(list(xs)))


def arrays(x: Any, count: int) -> Any:
    """Return a structure of `Heads` as one of arrays (heads, ...); None stays None.

    Sums of NumPy depend on the order of axes in memory, so it is the usual one. Records are taken
    `apart`.

    count: how many heads there are.
    """

    def one(part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, Heads):
            return part.each if part.each.dtype.names else np.ascontiguousarray(part.each)
        return np.ascontiguousarray(np.broadcast_to(part, (count, *np.shape(part))))

    return apart(mapped(one, x))


def apart(x: Any) -> Any:
    """Return a structure with a tuple of fields for each event of the records in its dicts.

    The name of records in a dict is the tuple of the events' names; no field has gaps.
    """
    if isinstance(x, dict):
        found: dict[Any, Any] = {}
        for name, part in x.items():
            if isinstance(name, tuple):
                found |= {own: _fields(part[str(n)]) for n, own in enumerate(name)}
            else:
                found[name] = apart(part)
        return found
    return rebuilt(x, map(apart, x)) if isinstance(x, tuple) else x


def _fields(x: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.ascontiguousarray(x[name]).reshape(x[name].shape) for name in x.dtype.names)


def on_threads(function: Callable[[int], Result], count: int) -> list[Result]:
    """Return function(0) to function(count - 1), computed on several threads."""

    def quietly(n: int) -> Result:
        with np.errstate(
            all="ignore"
        ):  # overflow, inf - inf and NaN are results here, counted by the trace
            return function(n)

    with ThreadPoolExecutor(min(count, thread_count())) as pool:
        return list(pool.map(quietly, range(count)))
