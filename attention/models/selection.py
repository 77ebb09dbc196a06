"""A layer of a model, which layers a user means, and changes of layers that are taken back."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from roundscope.emu.numbers import is_whole, listed
from roundscope.emu.shown import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer that calls attention.

    Attributes:
        name: Its path in the model, such as "model.layers.3.self_attn".
        number: Its number among the layers that call attention, from 0 in the model's order.
    """

    name: str
    number: int

    @property
    def place(self) -> str:
        """Its number and path, for messages."""
        return f"layer {self.number} ({self.name or 'the model itself'})"


def chosen(
    layers: str | int | Sequence[int], known: Sequence[Layer], argument: str = "layers"
) -> list[Layer]:
    """Return the layers that a user means.

    Args:
        layers: "*" for all; "layers.0-3" or "0-3" for numbers, both ends included; "layers.2" or 2
            for one; a sequence of numbers; or a pattern of paths, such as "encoder.*".
        known: The layers there are.
        argument: The name of the argument that has `layers`, for errors.

    Returns:
        The layers meant, in the order of `known`.

    Raises:
        ValueError: It means none of them, or one that there is not.

    Example:
        >>> from roundscope.attention.models.selection import Layer, chosen
        >>> known = [Layer(name=f"blocks.{n}", number=n) for n in range(4)]
        >>> [layer.number for layer in chosen("layers.1-2", known)]
        [1, 2]
        >>> [layer.number for layer in chosen("blocks.3", known)]
        [3]
    """
    by_path = isinstance(layers, str) and [x for x in known if fnmatch.fnmatch(x.name, layers)]
    if by_path:
        return by_path
    wanted = _numbers(layers)
    there = {layer.number for layer in known}
    by_number = there == set(range(len(known)))
    if not wanted or not wanted <= there:
        if by_number and wanted:
            more = f"there are {len(known)} layers, 0 to {len(known) - 1}"
            told = more if len(known) > 1 else "there is layer 0 alone"
            raise ValueError(f"{argument}={shown(layers)}: {told}")
        first = ", ".join(f"{layer.number} {layer.name}" for layer in known[:8])
        more = f" and {len(known) - 8} more" if len(known) > 8 else ""
        raise ValueError(
            f"{argument}={shown(layers)}: must be '*', numbers such as 'layers.0-3' or [0, 2], or a"
            f" pattern of these paths: {first}{more}"
        )
    return [layer for layer in known if layer.number in wanted]


def fits(layers: str | int | Sequence[int], layer: Layer) -> bool:
    """Return whether a layer is one of those that a user means, where not all layers are known.

    Args:
        layers: As for `chosen`.
        layer: The layer.

    Example:
        >>> from roundscope.attention.models.selection import Layer, fits
        >>> fits("0-1", Layer(name="blocks.1", number=1)), fits([0], Layer(name="a", number=1))
        (True, False)
    """
    by_path = isinstance(layers, str) and fnmatch.fnmatch(layer.name, layers)
    return by_path or layer.number in _numbers(layers)


def heads_given(heads: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """Return query heads as a user means them: how many, the first ones; which; or None for all.

    Raises:
        ValueError: They are anything else.
    """
    if heads is None or (is_whole(heads) and 0 < cast(int, heads) < 2**31):
        return cast("int | None", heads)
    if isinstance(heads, Sequence) and not isinstance(heads, str | bytes) and len(heads) > 0:
        own = tuple(heads)
        if all(isinstance(n, int) and n >= 0 for n in own) and len(set(own)) == len(own):
            return own
    raise ValueError(
        f"heads={shown(heads)}: how many, such as 4, or which, such as [0, 3], or None for all"
    )


def heads_of(heads: int | tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    """Return the numbers of the heads that are meant, of a call that has `count`.

    Raises:
        ValueError: There is no such head.

    Example:
        >>> heads_of(2, 4), heads_of(None, 2), heads_of((3,), 4)
        ((0, 1), (0, 1), (3,))
    """
    if heads is None:
        return tuple(range(count))
    if isinstance(heads, int):
        if heads > count:
            raise ValueError(f"heads={heads}: the model has {count}; give fewer, or None for all")
        return tuple(range(heads))
    if max(heads) >= count:
        raise ValueError(f"heads={list(heads)}: the model has {count}, 0 to {count - 1}")
    return heads


DIGITS = 6  # of the number of a layer, fewer than this


def _numbers(layers: str | int | Sequence[int]) -> set[int]:
    if isinstance(layers, str):
        first, dash, last = layers.removeprefix("layers.").partition("-")
        if not all(n.isdecimal() and len(n) < DIGITS for n in (first, last if dash else first)):
            return set()
        return set(range(int(first), int(last if dash else first) + 1))
    if is_whole(layers):
        return {int(cast(int, layers))}
    numbers = listed("layers", layers, "whole numbers, such as [0, 2]")
    if not all(map(is_whole, numbers)):
        raise TypeError(f"layers={shown(layers)}: give whole numbers, such as [0, 2]")
    return {int(n) for n in numbers}


class Removable:
    """A change of a model, until `remove` is called; a context manager that does so at its end.

    Attributes:
        layers: The layers that are changed.
    """

    def __init__(self, layers: Sequence[Layer], undo: Sequence[Callable[[], object]]) -> None:
        self.layers, self._undo = tuple(layers), list(undo)

    def __repr__(self) -> str:
        state = f"of {len(self.layers)} layers" if self._undo else "removed"
        return f"<{type(self).__name__} {state}>"

    def remove(self) -> None:
        """Take the change back. A second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()
