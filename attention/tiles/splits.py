"""Keys that are split over blocks of a GPU, as FlashAttention-2 does where heads are few: the tiles
of a split, and what was seen.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from roundscope.attention.events.recorder import merged
from roundscope.attention.plans.plan import Plan


def splits_of(plan: Plan, key_tiles: int) -> Iterator[tuple[int, int]]:
    """The first key tile of each split, and the one behind its last; one of all tiles where nothing
    is split.
    """
    size = plan.split_tiles or key_tiles
    yield from ((first, min(first + size, key_tiles)) for first in range(0, key_tiles, size))


def joined(xp: Any, parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What was seen of tiles, split after split, as of all tiles; None stands for zeros of that
    many tiles.
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


def counted_together(xp: Any, seen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was seen of events that every split has, as of one event."""
    found: dict[str, Any] = {}
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
