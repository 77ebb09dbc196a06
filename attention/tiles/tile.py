"""`Tile`: where a tile of scores stands in its head, and which of its events exist."""

from dataclasses import dataclass
from typing import Any

from roundscope.attention.sites import RESCALES, Axes, Site
from roundscope.attention.tiles.sample import Side
from roundscope.emu.backends.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Where a tile stands, and which of its entries exist.

    head       flat index batch * heads + head;  heads: per batch entry
    i, j       index of the query tile and key tile;  row0, key0: their first query and key
    mask       (queries, keys): the scores that exist
    rows       (queries,): rows that have had a key by now;  rescaled: rows that had one before this
               tile
    keys       (keys,): keys that some query of this tile sees
    sample     what a trace looks at, of queries and of keys; None for all
    is_cut     the diagonal crosses the tile, of a causal call
    is_flushed the accumulator of O is flushed before this tile, of plans with `flushed_tiles`
    is_whole   all scores exist
    is_unrecorded    events may happen where none exists, if they leave what is there as it is:
                     nobody counts them
    """

    head: Any
    heads: int
    i: Any
    j: Any
    row0: Any
    key0: Any
    mask: Array
    rows: Array
    rescaled: Array
    keys: Array
    sample: tuple[Side, Side] | None = None
    is_cut: Any = False
    is_flushed: Any = False
    is_whole: bool = False
    is_unrecorded: bool = False

    def valid(self, site: Site) -> Array:
        """Which entries of an event exist, as a (rows, columns or 1) array."""
        if site.axes is Axes.TS:
            return self.mask
        if site.axes is Axes.SH:
            return self.keys[:, None]
        rows = self.rescaled if site in RESCALES else self.rows
        return (rows & self.is_flushed if site is Site.OA else rows)[:, None]

    def looked_at(self, site: Site) -> Side | None:
        """What a trace looks at of an event; None for all of it."""
        return None if self.sample is None else self.sample[site.axes is Axes.SH]

    def coordinates(self, xp: Any, site: Site, shape: tuple[int, ...]) -> tuple[Array, Array, Any]:
        """Row in the head and second index of every entry (broadcastable) of an event, and the
        index of the repeating tile.
        """
        axes = site.axes
        first = (self.key0 if axes is Axes.SH else self.row0) + xp.arange(shape[0])
        second = xp.arange(shape[1] if len(shape) == 2 else 1)
        if axes is Axes.TS:
            second = self.key0 + second
        first = first[:, None] if len(shape) == 2 else first
        return first, second, self.i if axes is Axes.SH else self.j
