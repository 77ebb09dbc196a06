"""Keys that are split over thread blocks of a GPU, as FlashAttention-2 does if heads are few.

This module gives the key tiles of each split, and joins the records of the splits of a head. The
equations that combine the results of the splits are in `attention.algorithm`.
"""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from roundscope.attention.events.recorder import Seen, merged
from roundscope.attention.plans.plan import Plan


def splits_of(plan: Plan, key_tiles: int) -> Iterator[tuple[int, int]]:
    """Yield the first key tile of each split and the tile after its last.

    In a plan without splits, one split has all tiles.
    """
    size = plan.split_tiles or key_tiles
    yield from ((first, min(first + size, key_tiles)) for first in range(0, key_tiles, size))


def joined(xp: ModuleType, parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return what was recorded of the tiles of all splits, joined along the tiles.

    parts  what was recorded in each split: dicts or tuples of arrays whose first axis is the key
           tile; None stands for zeros, in a split of which no tile was computed
    sizes  key tiles of each split
    """
    like = next((part for part in parts if part is not None), None)
    if like is None or len(parts) == 1:
        return like
    if isinstance(like, dict):
        return {
            name: joined(xp, [None if part is None else part[name] for part in parts], sizes)
            for name in like
        }
    if isinstance(like, tuple):
        return tuple(
            joined(xp, [None if part is None else part[n] for part in parts], sizes)
            for n in range(len(like))
        )
    pairs = zip(parts, sizes, strict=True)
    return xp.concatenate(
        [
            xp.zeros((size, *like.shape[1:]), like.dtype) if part is None else part
            for part, size in pairs
        ]
    )


def counted_together(xp: ModuleType, seen: Sequence[Seen]) -> Seen:
    """Return the summaries of the events that each split has, added up over the splits."""
    found: Seen = {}
    for part in seen:
        for name, new in part.items():
            old = found.get(name)
            found[name] = (
                new
                if old is None
                else merged(xp, old, new)
                if isinstance(new, tuple)
                else old + new
            )
    return found
