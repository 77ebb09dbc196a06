"""`Tile`: the position of a tile of scores in its head, and which entries of its events exist."""

from dataclasses import dataclass
from types import ModuleType

from roundscope.attention.sites import RESCALES, Axes, Site
from roundscope.emu.backends.ops import Array
from roundscope.emu.sums.accumulator import Order
from roundscope.events.place import Index, Side

STEPS_OF_SCORES = (Site.PV, Site.ROWSUM, Site.DQ, Site.DV, Site.DK)  # sums over scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The position of a tile of scores in its head, and which of its entries exist.

    For the events that a head has only once, a `Tile` of all its rows and keys is used.

    head       the head's flat index, batch entry * heads + head
    heads      heads of a batch entry
    i, j       the indices of the query tile and of the key tile
    row0, key0 the first query and the first key of the tile
    mask       (queries, keys) of bool: the scores that exist, neither masked nor padding
    rows       (queries,) of bool: rows that have had a visible key by now, this tile included
    rescaled   (queries,) of bool: rows that had a visible key before this tile. The events that
               rescale by alpha (`sites.RESCALES`) exist only in these rows
    keys       (keys,) of bool: keys that some query of this tile sees
    sample     the part that a trace looks at, first for events of queries and then for events of
               keys; None for all
    is_cut     whether the diagonal of a causal call, or an edge of a window, crosses the tile
    is_flushed whether O is flushed to its second sum before this tile, in plans with
               `flushed_tiles`
    is_whole   whether all scores exist
    anywhere   the sites whose events may also be applied to entries that do not exist, if they are
               as `Events` says: that changes no such entry, or none that anybody reads
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
    anywhere: frozenset[Site] = frozenset()

    def is_complete(self, site: Site) -> bool:
        """Return whether all entries of a site's event are known to exist."""
        return self.is_whole and site not in RESCALES

    def may_round_missing(self, site: Site) -> bool:
        """Return whether entries of an event that do not exist may be rounded with the others.

        DP and DPD may not: they are multiplied by P = 0 at masked scores, and the product would be
        NaN if the rounding made them infinite.
        """
        return site in self.anywhere and site not in (Site.DP, Site.DPD)

    def valid(self, site: Site) -> Array:
        """Return which entries of a site's event exist, (rows, columns or 1) of bool."""
        if site.axes is Axes.TS:
            return self.mask
        if site.axes is Axes.SH:
            return self.keys[:, None]
        rows = self.rescaled if site in RESCALES else self.rows
        return (rows & self.is_flushed if site is Site.OA else rows)[:, None]

    def valid_steps(self, site: Site, order: Order) -> Array | None:
        """Return which additions of the sum at a site exist, or None if they are those of entries.

        A masked score has no addition in a sum over scores that adds one product after the other.
        """
        if order is not Order.ASCENDING or site not in STEPS_OF_SCORES:
            return None
        return (self.mask if site.axes is Axes.SH else self.mask.T)[:, :, None]

    def looked_at(self, site: Site) -> Side | None:
        """Return the part of a site's event that a trace looks at, or None for all of it."""
        return None if self.sample is None else self.sample[site.axes is Axes.SH]

    def coordinates(
        self, xp: ModuleType, site: Site, shape: tuple[int, ...]
    ) -> tuple[Array, Array, Index]:
        """Return the coordinates in the head of the entries of a site's event.

        The first two results broadcast to the shape of the event. They are the row of each entry,
        which is a key for sites of keys, and its second index: a key for scores, a feature for
        events with features, and 0 for others. The third result is the tile at which the event is
        repeated: the index of the query tile for sites of keys, and of the key tile for others.
        """
        axes = site.axes
        first = (self.key0 if axes is Axes.SH else self.row0) + xp.arange(shape[0])
        second = xp.arange(shape[1] if len(shape) == 2 else 1)
        if axes is Axes.TS:
            second = self.key0 + second
        first = first[:, None] if len(shape) == 2 else first
        return first, second, self.i if axes is Axes.SH else self.j
