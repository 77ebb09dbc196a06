"""Which tiles a trace looks at: all of them, or a sample, by the same arithmetic on every engine.

A sample takes, of the n tiles of queries of a head, those numbered (b + every k) mod n with k = 0,
1, ... below n / every; for dK and dV it takes tiles of keys by the same rule. For each tile taken,
the rule is applied again to all tiles of the other side, whatever a mask hides. The beginning b is
spread over 0 .. n - 1 by Fibonacci hashing of the number of the head, or of the tile (Knuth, The
Art of Computer Programming 3, 6.4), so that no place of the sequence is preferred.

A head is a query head here; but for K, V and the gradients dK and dV as they leave, which a group
of query heads shares, it is a key head.
"""

from types import ModuleType
from typing import NamedTuple

from roundscope.attention.tiles.index import Index
from roundscope.emu.backends.ops import Array

GOLDEN = 2654435769  # 2^32 times the fractional part of the golden ratio


class Side(NamedTuple):
    """The part of a tile that a trace looks at, the tile taken as one of queries or one of keys.

    is_seen  whether the tile is looked at, a bool; where the tile is a whole head, one for each of
             its rows, (rows,)
    rows     where the tile is a whole head, the numbers of the rows looked at, ascending; else None
    rank     where it is, (rows,): how many rows before each row are looked at; else None
    """

    is_seen: Array
    rows: Array | None = None
    rank: Array | None = None

    def spread(self, xp: ModuleType, sums: Array) -> Array:
        """Return sums of the rows looked at as sums of all rows of a head, 0 for the others."""
        return xp.where(self.is_seen, sums[xp.minimum(self.rank, sums.shape[0] - 1)], 0.0)


def count(every: int, tiles: int) -> int:
    """Return how many of so many tiles a sample of one in `every` takes."""
    return -(-tiles // every)


def begin(every: int, tiles: int, number: Index) -> Index:
    """Return b, the first tile taken, of what owns so many tiles; 0 where all are taken.

    number: that of the owner, a head or a tile.
    """
    return 0 if every == 1 else ((number * GOLDEN) % 2**32 * tiles) // 2**32


def chosen(every: int, tiles: int, number: Index, k: Array) -> Array:
    """Return the k-th of the tiles taken, for each k; number: that of their owner."""
    return (begin(every, tiles, number) + every * k) % tiles


def place(xp: ModuleType, every: int, tiles: int, number: Index, tile: Index) -> Array:
    """Return the k for which a tile is the k-th one taken, or -1 if it is not taken."""
    beyond = (tile + tiles - begin(every, tiles, number)) % tiles
    return xp.where(beyond % every == 0, beyond // every, -1)


def of_tile(
    xp: ModuleType, every: int, tiles: tuple[int, int], head: Index, i: Index, j: Index
) -> tuple[Side, Side]:
    """Return what is looked at of tile (i, j), as a tile of queries and as one of keys.

    tiles: how many tiles of queries, and of keys, the head has.
    """
    return Side(_is_seen(xp, every, tiles, head, i, j)), Side(
        _is_seen(xp, every, tiles[::-1], head, j, i)
    )


def of_head(
    xp: ModuleType, every: int, tiles: tuple[int, int], sizes: tuple[int, int], head: Index
) -> tuple[Side, Side]:
    """Return what is looked at of a head as one tile, of its queries and of its keys.

    tiles, sizes: how many tiles of queries and of keys the head has, and the rows of each.
    """
    return _of_rows(xp, every, tiles[0], sizes[0], head), _of_rows(
        xp, every, tiles[1], sizes[1], head
    )


def _is_seen(
    xp: ModuleType, every: int, tiles: tuple[int, int], head: Index, own: Index, walked: Index
) -> Array:
    """Return whether tile `own` of one side is taken, and of it tile `walked` of the other."""
    is_own = place(xp, every, tiles[0], head, own) >= 0
    return is_own & (place(xp, every, tiles[1], head * tiles[0] + own, walked) >= 0)


def _of_rows(xp: ModuleType, every: int, tiles: int, size: int, head: Index) -> Side:
    """Return what is looked at of the rows of a head, in so many tiles of so many rows."""
    own, row = xp.sort(chosen(every, tiles, head, xp.arange(count(every, tiles)))), xp.arange(size)
    is_seen = place(xp, every, tiles, head, xp.arange(tiles)) >= 0
    before = xp.cumsum(is_seen) - is_seen.astype("int64")
    rows, rank = ((first[:, None] * size + row).reshape(-1) for first in (own, before))
    return Side(xp.repeat(is_seen, size), rows, rank)
