"""`Heads`: the arrays of several heads in place of the array of one, for the loops over tiles.

The heads of a call run in step: a loop over tiles is Python's once for all of them, and a program
computes a tile of each head in one call. The loops slice, stack and compare arrays, and `Heads`
does that for every head; what a step computes is done by programs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from roundscope.emu.backends.numba.ops import stack


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

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> "Heads":
        axes = max(x.ndim if isinstance(x, Heads) else np.ndim(x) for x in inputs)
        return Heads(getattr(ufunc, method)(*(_widened(x, axes) for x in inputs), **kwargs))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> "Heads":
        count = len(self.each)
        if function is np.stack:  # the one that loops over tiles do most
            return Heads(np.stack([spread(x, count).each for x in args[0]], axis=1))
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


def spread(x: Any, count: int) -> Any:
    """Return a structure of arrays with a `Heads` in place of each array; None stays None."""

    def one(part: Any) -> Any:
        if isinstance(part, Heads) or part is None:
            return part
        return Heads(np.broadcast_to(part, (count, *np.shape(part))))

    return mapped(one, x)


def together(xs: Sequence[Any]) -> Any:
    """Return structures of arrays, one of each head, as a structure of `Heads`."""
    return mapped(Heads, stack(list(xs)))


def joined(xs: Sequence[Any]) -> Any:
    """Return structures of `Heads`, of the same form, as one of arrays (heads, ...)."""
    like = xs[0]
    if isinstance(like, dict):
        return {name: joined([x[name] for x in xs]) for name in like}
    if isinstance(like, tuple):
        return tuple(map(joined, zip(*xs, strict=True)))
    if like is None:
        return None
    parts = [x.each for x in xs]
    heads = sum(map(len, parts))
    # sums of NumPy depend on the order of axes in memory, so it is always the same
    return np.concatenate(parts, out=np.empty((heads, *like.shape), like.each.dtype))


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """Return a structure of tuples, lists and dicts with a function's results as its parts."""
    if isinstance(x, dict):
        return {name: mapped(function, part) for name, part in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(mapped(function, part) for part in x)
    return function(x)
