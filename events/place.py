"""Where the entries of an event stand in a call: `Place`, which the hook and the recorder ask.

A part of a call that is computed at once, such as a tile of a head or some rows of a norm, is a
place.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.sums.accumulator import Order

# a number that counts heads, tiles or rows: an int of Python, or an integer of the array library,
# as in a loop under XLA, where it is traced
Index: TypeAlias = int | Array


class Side(NamedTuple):
    """The part of a place that a trace looks at.

    is_seen  whether the place is looked at, a bool; if it is whole, whether each of its rows is,
             (rows,)
    rows     if the place is whole, the numbers of the rows looked at, ascending; else None
    rank     if the place is whole, how many rows before each row are looked at, (rows,); else None
    """

    is_seen: Array
    rows: Array | None = None
    rank: Array | None = None

    def spread(self, xp: ModuleType, sums: Array) -> Array:
        """Return the sums of all rows from those of the rows looked at; 0 for other rows."""
        return xp.where(self.is_seen, sums[xp.minimum(self.rank, sums.shape[0] - 1)], 0.0)


class Place(Protocol):
    """What the hook asks about the events of a part of a call; sites are those of its operation.

    head   the index of the part among those whose random bits are apart, such as a head
    heads  how many of these a batch entry has
    """

    @property
    def head(self) -> Index: ...

    @property
    def heads(self) -> int: ...

    def is_complete(self, site: Any) -> bool:
        """Return whether all entries of a site's event are known to exist."""

    def may_round_missing(self, site: Any) -> bool:
        """Return whether entries of a site's event that do not exist may be rounded with the others
        by a rounding that keeps 0, infinity and NaN.
        """

    def valid(self, site: Any) -> Array:
        """Return which entries of a site's event exist, (rows, columns or 1) of bool."""

    def valid_steps(self, site: Any, order: Order) -> Array | None:
        """Return which additions of the sum at a site exist, broadcast to (products, rows,
        columns), or None if they are those of the entries.
        """

    def looked_at(self, site: Any) -> Side | None:
        """Return the part of a site's event that a trace looks at, or None for all of it."""

    def coordinates(
        self, xp: ModuleType, site: Any, shape: tuple[int, ...]
    ) -> tuple[Array, Array, Index]:
        """Return the coordinates of the entries of a site's event: the row, the second index, and
        at which repetition of the event this is.
        """


_ALL = np.ones((1, 1), bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows (tokens) of an operation that computes each row by itself, all of which exist.

    row0   the first row
    head   the index of the call among those whose random bits are apart, such as a layer
    """

    row0: Index = 0
    head: Index = 0
    heads: int = 1

    def is_complete(self, site: Any) -> bool:
        """Return True: every entry exists."""
        return True

    def may_round_missing(self, site: Any) -> bool:
        """Return True; no entry is missing."""
        return True

    def valid(self, site: Any) -> Array:
        """Return that every entry exists."""
        return _ALL

    def valid_steps(self, site: Any, order: Order) -> Array | None:
        """Return None: the additions are those of the entries."""
        return None

    def looked_at(self, site: Any) -> Side | None:
        """Return None: a trace looks at all rows."""
        return None

    def coordinates(
        self, xp: ModuleType, site: Any, shape: tuple[int, ...]
    ) -> tuple[Array, Array, Index]:
        """Return the row and the feature of each entry; events happen once."""
        rows = self.row0 + xp.arange(shape[0])
        features = xp.arange(shape[1] if len(shape) == 2 else 1)
        return rows[:, None] if len(shape) == 2 else rows, features, 0
