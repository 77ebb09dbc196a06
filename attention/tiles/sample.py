"""Which tiles a trace looks at: all of them, or a sample that every engine finds by the same
arithmetic.

Of a head's n tiles of queries those numbered (b + every k) mod n, k = 0, 1, ... below n / every;
for dK and dV of its tiles of keys. For each the same is chosen of all tiles of the other side,
whatever a mask hides. b is spread over 0 .. n - 1 by Fibonacci hashing of the number of the head,
or of the tile (Knuth, The Art of Computer Programming 3, 6.4): no place of the sequence is
preferred. A head is a query head; for K, V and the gradients as they leave, which query heads
share, a key head.
"""

from typing import Any, NamedTuple

from roundscope.emu.backends.ops import Array

GOLDEN = 2654435769  # 2^32 times the golden ratio's fraction


class Side(NamedTuple):
    """What is looked at of a tile, as one of queries or as one of keys.

    is_seen  bool; where the tile is a whole head (rows,), and then also
    rows     the numbers of the rows seen, ascending;  rank: how many seen rows are before each row
    """

    is_seen: Any
    rows: Any = None
    rank: Any = None

    def spread(self, xp: Any, sums: Array) -> Array:
        """Sums of the rows seen as those of all, 0 elsewhere."""
        return xp.where(self.is_seen, sums[xp.minimum(self.rank, sums.shape[0] - 1)], 0.0)


def count(every: int, tiles: int) -> int:
    """How many of so many tiles are looked at."""
    return -(-tiles // every)


def begin(every: int, tiles: int, number: Any) -> Any:
    """b, of what owns so many tiles; the first of them where all are looked at."""
    return 0 if every == 1 else ((number * GOLDEN) % 2**32 * tiles) // 2**32


def chosen(every: int, tiles: int, number: Any, k: Any) -> Any:
    """The k-th of the tiles looked at; number: of what owns them."""
    return (begin(every, tiles, number) + every * k) % tiles


def place(xp: Any, every: int, tiles: int, number: Any, tile: Any) -> Any:
    """Its k, or -1 of a tile that is not looked at."""
    beyond = (tile + tiles - begin(every, tiles, number)) % tiles
    return xp.where(beyond % every == 0, beyond // every, -1)


def of_tile(
    xp: Any, every: int, tiles: tuple[int, int], head: Any, i: Any, j: Any
) -> tuple[Side, Side]:
    """Of tile (i, j) of a head with so many tiles of queries and of keys: as one of queries, as one
    of keys.
    """
    return Side(_is_seen(xp, every, tiles, head, i, j)), Side(
        _is_seen(xp, every, tiles[::-1], head, j, i)
    )


def of_head(
    xp: Any, every: int, tiles: tuple[int, int], sizes: tuple[int, int], head: Any
) -> tuple[Side, Side]:
    """Of a head as one tile; sizes: rows of a tile of queries and of keys."""
    return _of_rows(xp, every, tiles[0], sizes[0], head), _of_rows(
        xp, every, tiles[1], sizes[1], head
    )


def _is_seen(xp: Any, every: int, tiles: tuple[int, int], head: Any, own: Any, walked: Any) -> Any:
    is_own = place(xp, every, tiles[0], head, own) >= 0
    return is_own & (place(xp, every, tiles[1], head * tiles[0] + own, walked) >= 0)


def _of_rows(xp: Any, every: int, tiles: int, size: int, head: Any) -> Side:
    own, row = xp.sort(chosen(every, tiles, head, xp.arange(count(every, tiles)))), xp.arange(size)
    is_seen = place(xp, every, tiles, head, xp.arange(tiles)) >= 0
    before = xp.cumsum(is_seen) - is_seen.astype("int64")
    rows, rank = ((first[:, None] * size + row).reshape(-1) for first in (own, before))
    return Side(xp.repeat(is_seen, size), rows, rank)
