"""`Tile`: where a tile of scores is in its head, and which entries of its events exist."""

from dataclasses import dataclass
from types import ModuleType

from roundscope.attention.sites import RESCALES, Axes, Site
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.sample import Side
from roundscope.emu.backends.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Where a tile of scores is in its head, and which of its entries exist.

    A head as a whole, for the events that it has once, is a `Tile` too: of all its rows and keys.

    head       the head's flat index, batch entry * heads + head
    heads      heads of a batch entry
    i, j       the indices of the query tile and of the key tile
    row0, key0 the first query and the first key of the tile
    mask       (queries, keys) of bool: the scores that exist, neither masked nor padding
    rows       (queries,) of bool: rows that have had a visible key by now, this tile included
    rescaled   (queries,) of bool: rows that had a visible key before this tile. Only of them do the
               events of rescaling by alpha exist (`sites.RESCALES`), so a row has those from its
               second key tile on
    keys       (keys,) of bool: keys that some query of this tile sees
    sample     the part that a trace looks at, as a tile of queries and as one of keys; None for all
    is_cut     whether the diagonal of a causal call, or an edge of a window, crosses the tile
    is_flushed whether the accumulator of O is flushed before this tile, by plans with
               `flushed_tiles`
    is_whole   whether all scores exist
    is_unrecorded    whether nobody counts the tile's events; then an event may also be applied to
                     entries that do not exist, if it leaves them as they are
    """

    head: Index
    heads: int
    i: Index
    j: Index
    row0: Index
    key0: Index
    mask: Array
    rows: Array
    rescaled: Array
    keys: Array
    sample: tuple[Side, Side] | None = None
    is_cut: bool | Array = False
    is_flushed: bool | Array = False
    is_whole: bool = False
    is_unrecorded: bool = False

    def valid(self, site: Site) -> Array:
        """Return which entries of a site's event exist, (rows, columns or 1) of bool."""
        if site.axes is Axes.TS:
            return self.mask
        if site.axes is Axes.SH:
            return self.keys[:, None]
        rows = self.rescaled if site in RESCALES else self.rows
        return (rows & self.is_flushed if site is Site.OA else rows)[:, None]

    def looked_at(self, site: Site) -> Side | None:
        """Return the part of a site's event that a trace looks at; None for all of it."""
        return None if self.sample is None else self.sample[site.axes is Axes.SH]

    def coordinates(
        self, xp: ModuleType, site: Site, shape: tuple[int, ...]
    ) -> tuple[Array, Array, Index]:
        """Return where the entries of a site's event, of the given shape, are in their head.

        The result is the row of each entry (a key for sites of keys), its second index (a key for
        scores, else a feature, 0 without features), both broadcastable to the shape, and the index
        of the other side's tile, for each of which the event is repeated.
        """
        axes = site.axes
        first = (self.key0 if axes is Axes.SH else self.row0) + xp.arange(shape[0])
        second = xp.arange(shape[1] if len(shape) == 2 else 1)
        if axes is Axes.TS:
            second = self.key0 + second
        first = first[:, None] if len(shape) == 2 else first
        return first, second, self.i if axes is Axes.SH else self.j
