"""The random bits of events, for stochastic rounding and for injected noise.

Each head has 128 streams of random numbers, and every site has a stream of its own (`Site.stream`).
The streams from number 64 on share the counters of the first 64 and start at a later step.
"""

from types import ModuleType

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles.records import Index
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.random import event_bits

STREAMS = 64  # of a head, before the later ones
LATER = 2**30  # first step of streams 64 and above; no sum has that many additions
NOISE = 2**31  # the step whose random bits belong to an injection, not to a rounding
TILE = 65536  # how far the column index of a repeated event moves on per tile


def random_bits(
    xp: ModuleType, tile: Tile, site: Site, seed: int, shape: tuple[int, ...], step: Index = 0
) -> Array:
    """Return the random integers in [0, 2^31) of a tile's event, an array of the given shape.

    They depend on the coordinates of an entry in its head, and not on the size of query tiles. For
    events of scores they do not depend on the size of key tiles either.

    seed  the seed of the rounding or injection
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
