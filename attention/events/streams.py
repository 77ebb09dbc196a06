"""The random bits of an event: each head has 64 streams and 64 later ones, of which every site has
its own (`Site.stream`).
"""

from typing import Any

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array
from roundscope.emu.rounding.random import event_bits

STREAMS = 64  # of a head
LATER = 2**30  # the step from which streams of 64 and above count: no sum has so many additions
NOISE = 2**31  # the step whose random bits are an injection's, not a rounding's
TILE = 65536  # columns by which an event that is repeated moves on, tile by tile


def random_bits(
    xp: Any, tile: Tile, site: Site, seed: int, shape: tuple[int, ...], step: Any = 0
) -> Array:
    """Integers in [0, 2^31) of a tile's event, by the coordinates in the head: the size of tiles of
    queries plays no part, and at events of scores that of keys neither. step: which addition of a
    sum, counted from 1; 0 for the event itself.
    """
    if site.stream >= STREAMS:
        step = step + LATER * (site.stream // STREAMS)
    rows, columns, repeated = tile.coordinates(xp, site, shape)
    if site.axes is not Axes.TS:
        columns = columns + repeated * TILE
    return event_bits(
        xp, seed, tile.head * STREAMS + site.stream % STREAMS, rows, columns, step
    ).reshape(shape)
