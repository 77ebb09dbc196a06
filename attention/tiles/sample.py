"""Which tiles a trace looks at: all of them, or a sample, by the same arithmetic on every engine.

A head has n query tiles. A sample takes those with the numbers (b + every k) mod n, where k is 0,
1, ... below n / every. For each query tile taken, the same rule takes some of the key tiles,
including those that a mask hides. So a query tile is the owner of its row of tiles: it is the own
tile, and the key tiles are the tiles walked over. For the events of dK and dV the sides are
exchanged: the rule first takes key tiles as own tiles, and then query tiles for each of them.

The beginning b is spread over 0 .. n - 1 by Fibonacci hashing of the number of the owner, which is
the head in the first step and the own tile in the second (Knuth, The Art of Computer Programming 3,
6.4). So no position in the sequence is preferred.

A head is a query head here. For K, V and the final gradients (DK_OUT, DV_OUT), which a group of
query heads shares, it is a key head.
"""

from types import ModuleType

from roundscope.emu.backends.ops import Array
from roundscope.events.place import Index, Side

GOLDEN = 2654435769  # 2^32 times the fractional part of the golden ratio


def count(every: int, tiles: int) -> int:
    """Return how many of `tiles` tiles a sample of one in `every` takes."""
    return -(-tiles // every)


def begin(every: int, tiles: int, number: Index) -> Index:
    """Return b, the first tile that a sample takes of `tiles` tiles; 0 if it takes all.

    number: the number of the owner of these tiles, a head or a tile.
    """
    return 0 if every == 1 else ((number * GOLDEN) % 2**32 * tiles) // 2**32


def chosen(every: int, tiles: int, number: Index, k: Array) -> Array:
    """Return the k-th tile taken, for each k; number: the number of the tiles' owner."""
    return (begin(every, tiles, number) + every * k) % tiles


def place(xp: ModuleType, every: int, tiles: int, number: Index, tile: Index) -> Array:
    """Return the k for which a tile is the k-th one taken, or -1 if it is not taken."""
    beyond = (tile + tiles - begin(every, tiles, number)) % tiles
    return xp.where(beyond % every == 0, beyond // every, -1)


def of_tile(
    xp: ModuleType, every: int, tiles: tuple[int, int], head: Index, i: Index, j: Index
) -> tuple[Side, Side]:
    """Return the part of tile (i, j) that is looked at, for events of queries and of keys.

    tiles: how many query tiles, and how many key tiles, the head has.
    """
    return Side(_is_seen(xp, every, tiles, head, i, j)), Side(
        _is_seen(xp, every, tiles[::-1], head, j, i)
    )


def of_head(
    xp: ModuleType, every: int, tiles: tuple[int, int], sizes: tuple[int, int], head: Index
) -> tuple[Side, Side]:
    """Return the part of a head that is looked at, for events of queries and of keys.

    tiles: how many query tiles, and how many key tiles, the head has; sizes: the rows of each.
    """
    return _of_rows(xp, every, tiles[0], sizes[0], head), _of_rows(
        xp, every, tiles[1], sizes[1], head
    )


def _is_seen(
    xp: ModuleType, every: int, tiles: tuple[int, int], head: Index, own: Index, walked: Index
) -> Array:
    """Return whether the sample takes tile `own` of one side and, for it, `walked` of the other."""
    is_own = place(xp, every, tiles[0], head, own) >= 0
    return is_own & (place(xp, every, tiles[1], head * tiles[0] + own, walked) >= 0)


def _of_rows(xp: ModuleType, every: int, tiles: int, size: int, head: Index) -> Side:
    """Return the part of a head's rows that is looked at, in `tiles` tiles of `size` rows."""
    own, row = xp.sort(chosen(every, tiles, head, xp.arange(count(every, tiles)))), xp.arange(size)
    is_seen = place(xp, every, tiles, head, xp.arange(tiles)) >= 0
    before = xp.cumsum(is_seen) - is_seen.astype("int64")
    rows, rank = ((first[:, None] * size + row).reshape(-1) for first in (own, before))
    return Side(xp.repeat(is_seen, size), rows, rank)
