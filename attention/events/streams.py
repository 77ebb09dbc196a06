"""The random bits of events, for stochastic rounding and for injected noise.

Each head has 64 streams of random numbers and 64 later ones, of which every site has its own
(`Site.stream`).
"""

from types import ModuleType

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.random import event_bits

STREAMS = 64  # of a head
LATER = 2**30  # the step from which streams of 64 and above count: no sum has so many additions
NOISE = 2**31  # the step whose random bits are an injection's, not a rounding's
TILE = 65536  # columns by which an event that is repeated moves on, tile by tile


def random_bits(
    xp: ModuleType, tile: Tile, site: Site, seed: int, shape: tuple[int, ...], step: Index = 0
) -> Array:
    """Return the random integers in [0, 2^31) of a tile's event, an array of the given shape.

    They depend on the coordinates of an entry in its head, so the size of query tiles plays no
    part, nor, at events of scores, that of key tiles.

    seed  that of the rounding or injection
    step  which addition of a sum, counted from 1; 0 for the event itself, NOISE for an injection
    """
    if site.stream >= STREAMS:
        step = step + LATER * (site.stream // STREAMS)
    rows, columns, repeated = tile.coordinates(xp, site, shape)
    if site.axes is not Axes.TS:
        columns = columns + repeated * TILE
    return event_bits(
        xp, seed, tile.head * STREAMS + site.stream % STREAMS, rows, columns, step
    ).reshape(shape)
