"""What the order of a sum is called, in words and in those of a plan.

A tree of additions (`orders`) is compared with those of the accumulators, which are probed in the
same way, as a whole and inside tiles of neighboring terms.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.plans.hopper import HOPPER
from roundscope.emu import sum as emulated_sum
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.tools.identify.orders import Tree, folded, leaves, part_of, steps_of, tree_of

ACCUMULATORS = (
    Accumulator(),
    *(replace(HOPPER, chunk=chunk) for chunk in (16, 8, 4, 32)),
    Accumulator(order=Order.PAIRWISE),
    Accumulator(order=Order.HALVES),
    *(Accumulator(order=Order.CHUNKED, chunk=n) for n in (8, 16, 32, 64, 128, 256)),
    *(Accumulator(order=Order.STRIDED, chunk=n) for n in (2, 4, 8, 16, 32, 64, 128)),
    *(Accumulator(order=Order.OCTETS, chunk=n) for n in (2, 4, 8, 16)),
    *(Accumulator(order=Order.WARPS, chunk=n) for n in (1, 2, 4, 8)),
    *(Accumulator(order=Order.CASCADE, chunk=n) for n in (4, 8, 16)),
    Accumulator(order=Order.LEVELS),
    *(Accumulator(order=Order.QUAD_WARPS, chunk=n) for n in (32, 64, 128, 256, 512)),
    *(Accumulator(order=Order.OCTET_WARPS, chunk=n) for n in (32, 64, 128, 256, 512)),
    *(Accumulator(order=Order.QUAD_STRIDES, chunk=n) for n in (512, 1024)),
    *(Accumulator(order=Order.OCTET_STRIDES, chunk=n) for n in (512, 1024)),
    *(Accumulator(order=Order.BLOCK, chunk=n) for n in (32, 64, 128, 256, 512)),
)
"""The accumulators that a tree is compared with; those that come first are named first."""

NAMES = {
    Order.ASCENDING: "one after the other",
    Order.ALIGNED: "{} at once, as in a tensor core",
    Order.PAIRWISE: "in pairs of neighbors",
    Order.HALVES: "by halves",
    Order.CHUNKED: "in chunks of {}, each from 0",
    Order.STRIDED: "in {} strided lanes",
    Order.OCTETS: "in {} lanes of eight neighbors",
    Order.WARPS: "in warps whose threads add {} neighbors",
    Order.QUAD_WARPS: "in warps, {} threads, each of which takes four neighbors at a time",
    Order.OCTET_WARPS: "in warps, {} threads, each of which takes eight neighbors at a time",
    Order.QUAD_STRIDES: "in warps, {} threads that take four neighbors, and the last ones singly",
    Order.OCTET_STRIDES: "in warps, {} threads that take eight neighbors, and the last ones singly",
    Order.BLOCK: "in groups of {} threads of four sums",
    Order.CASCADE: "in a cascade of vectors of {} lanes",
    Order.LEVELS: "in levels of 16",
}

NAMELESS = "in no order that has a name here"
TURNS = {
    KeyOrder.ASCENDING: "from the first to the last",
    KeyOrder.DESCENDING: "from the last to the first",
}


@cache
def _of_accumulator(acc: Accumulator, n: int) -> Tree | None:
    return tree_of(lambda rows: np.asarray(emulated_sum(rows.astype(np.float64), acc)), n)


def accumulator_of(tree: Tree) -> Accumulator | None:
    """Return the first of `ACCUMULATORS` that adds in the order of a tree; None if none does.

    In few terms several do: a sum of two has one order.

    Example:
        >>> str(accumulator_of(((0, 2), (1, 3))))
        'halves fp32'
    """
    n = len(leaves(tree))
    return next((acc for acc in ACCUMULATORS if _of_accumulator(acc, n) == tree), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOrder:
    """A tree in words, and in those of a plan where it has them.

    words        what is added, and in which order
    block        terms of a tile; None if no tiles are seen
    order        the order of the tiles; None if it is neither ascending nor descending
    tiles        the numbers of the tiles in the order in which they are added
    apart        whether the sum of each tile is made apart and then added
    accumulator  how the terms of a tile, or of a sum without tiles, are added; None if no
                 accumulator adds so
    """

    words: str
    block: int | None = None
    order: KeyOrder | None = None
    tiles: tuple[int, ...] = ()
    apart: bool = False
    accumulator: Accumulator | None = None


def named_order(tree: Tree | None, terms: str = "terms") -> SumOrder:
    """Return what a tree is called.

    Args:
        tree: as `tree_of` returns it.
        terms: what the terms are, in the plural.

    Example:
        >>> named_order((((2, 3), 0), 1)).words
        'in no order that has a name here: of 4 terms, first 2 and 3'
        >>> named_order(None).words
        'exact, with one rounding at its end'
    """
    if tree is None:
        exact = Accumulator(order=Order.EXACT)
        return SumOrder(words="exact, with one rounding at its end", accumulator=exact)
    count = len(leaves(tree))
    if (known := _known(tree)) is not None:
        return SumOrder(words=known[0], accumulator=known[1])
    block, tiles, apart = _tiles(tree, count)
    if not block:
        first = " and ".join(str(k) for k in sorted(leaves(steps_of(tree)[0]))[:2])
        return SumOrder(words=f"{NAMELESS}: of {count} {terms}, first {first}")
    inner = {part_of(tree, range(lo, lo + block)) for lo in range(0, count - block + 1, block)}
    inside, acc = (_known(inner.pop()) if len(inner) == 1 else None) or (NAMELESS, None)
    order = _order(tiles)
    kind = "each summed apart" if apart else "into one running sum"
    if order:
        how = f"{TURNS[order]}, {kind}"
    elif tiles:
        shown = ", ".join(map(str, tiles[:12])) + (", ..." if len(tiles) > 12 else "")
        shown = shown.replace(", ", " and ", 1) if apart else shown  # either may come first
        how = f"in the order {shown}, {kind}"
    else:
        how = f"{kind}, then combined"
    words = f"tiles of {block} {terms}, {how}; inside a tile {inside}"
    if apart and order is KeyOrder.ASCENDING and acc == Accumulator():
        words += f"; as one sum this is chunked{block}"
    return SumOrder(
        words=words, block=block, order=order, tiles=tiles, apart=apart, accumulator=acc
    )


def _known(tree: Tree) -> tuple[str, Accumulator | None] | None:
    """Return the words and the accumulator of a tree without tiles; None if it has no name."""
    if (acc := accumulator_of(tree)) is not None:
        return _words(acc), acc
    count = len(leaves(tree))
    turned = {"from the last to the first": list(range(count - 1, -1, -1))}
    if count % 2 == 0:
        pairs = "the second of each pair first, as the instruction vdpbf16ps adds"
        turned[pairs] = [k ^ 1 for k in range(count)]
    for words, kept in turned.items():
        acc = accumulator_of(part_of(tree, kept))
        if acc is not None and acc.order in (Order.ASCENDING, Order.CHUNKED):
            return f"{NAMES[acc.order].format(acc.chunk)}, {words}", None
    return None


def _words(acc: Accumulator) -> str:
    """Return what an accumulator does, with its word in the grammar of changes if it has one."""
    words = NAMES[acc.order].format(acc.chunk)
    if acc.order in (Order.ASCENDING, Order.ALIGNED):
        return words
    return f"{words} ({acc.order}{acc.chunk if acc.order.has_chunk else ''})"


def _order(tiles: tuple[int, ...]) -> KeyOrder | None:
    if len(tiles) < 2 or sorted(tiles) not in ([*tiles], [*tiles[::-1]]):
        return None
    return KeyOrder.ASCENDING if tiles[0] < tiles[-1] else KeyOrder.DESCENDING


def _tiles(tree: Tree, count: int) -> tuple[int, tuple[int, ...], bool]:
    """Return the terms of a tile, the tiles in their order, and whether each is summed apart.

    No terms stand for no tiles, and no tiles for an order that is none.
    """
    sizes = range(8, count, 8)
    for block in sizes:
        whole = _contracted(tree, block, count)
        steps = [] if whole is None else [leaves(tuple(step)) for step in steps_of(whole)]
        if len(steps) == 1 and len(steps[0]) == 2:
            return block, (), True  # of two tiles nobody can say which came first
        if len(steps) > 1 and len(steps[0]) == 2 and all(len(step) == 1 for step in steps[1:]):
            first = steps[0] if steps[1][0] > min(steps[0]) else steps[0][::-1]
            return block, (*first, *(k for [k] in steps[1:])), True
    visits = [k for step in steps_of(tree) for k in sorted(leaves(step))]
    starts = [k for before, k in zip([-2, *visits], visits, strict=False) if k != before + 1]
    block = gcd(*starts)
    if block >= 8 and len(starts) > 1:
        return block, tuple(k // block for k in visits if k % block == 0), False
    apart = [block for block in sizes if _contracted(tree, block, count) is not None]
    return (max(apart), (), True) if apart else (0, (), False)


def _contracted(tree: Tree, block: int, count: int) -> Tree | None:
    """Return the tree of tiles whose sums are made apart; None if some tile's is not."""

    def joined(children: list[tuple[int, int, int, Tree | None]]) -> Any:
        lows, highs, counts, trees = zip(*children, strict=True)
        low, high, own = min(lows), max(highs), sum(counts)
        if low % block == 0 and own == min(block, count - low) == high - low + 1:
            return low, high, own, low // block
        return low, high, own, None if any(t is None for t in trees) else trees

    found: Tree | None = folded(tree, lambda k: (k, k, 1, None), joined)[3]
    return found
