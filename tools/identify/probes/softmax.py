"""Probes of a softmax: where its tiles end, in which order they come, and how a row is added up.

**Tiles.** Three neighboring keys have the scores -110, -55 and 0. If all are in one tile, the first
has P = exp(-110), which is 0 in binary32, and leaves no trace. If the key of score 0 comes in a
later tile, P of the first was exp(-55) or 1, and the factors of its rescalings are not 0 either: v
= 2^110 keeps the product above 0. This finds every end of a tile, and which side comes first; parts
of the keys that have a softmax of their own leave a trace both ways. In FP16 the scores -20 and 0
of two neighbors do: exp(-20) is 0 as a P, but not as the factor of a rescaling.

**Row sums.** All terms are positive, so there is no -M. One key has P = 1 and two others have 0.79
times 2^-24, which are lost one by one in binary32, but not together. So 1 / l tells which two of
three keys are added first, and those answers give the tree. It differs in the last bit of binary32,
so `out` must have all its bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import gcd

import numpy as np

from roundscope.attention.plans.choices import KeyOrder
from roundscope.tools.identify.order_names import TURNS, SumOrder, named_order
from roundscope.tools.identify.orders import INFINITE, Tree, Unprobed, tree_from
from roundscope.tools.identify.probes.calls import WIDE, Calls, Range

NEAR = 31  # keys of which the order in a row sum is probed
LOST, SEEN = -16.875, -16.0  # scores with exp of 0.79 and 1.89 times 2^-24
FAR = -500.0  # the score of all other keys
Row = dict[int, float]


def _out(
    run: Calls, heads: Sequence[tuple[Sequence[int], Sequence[Row]]], v: np.ndarray
) -> np.ndarray:
    """Return out of a call in which queries give chosen keys chosen scores, and all others `FAR`.

    Args:
        run: the kernel.
        heads: for each batch entry and key head, in turn, the keys that its queries choose from,
            fewer than there are features, and the scores that each query gives to them.
        v: the values, (B, S, N, H).

    Returns:
        (B N, T, H), of the first query head of each key head.
    """
    x = run.x
    (b, t, _, h), (_, s, n, _) = x.q.shape, x.k.shape
    q, k = np.full((b * n, t, h), FAR, np.float32), np.zeros((b * n, s, h), np.float32)
    k[..., -1] = 1.0
    for own, (keys, rows) in enumerate(heads):
        k[own, keys, -1] = 0.0
        k[own, keys, range(len(keys))] = 1.0
        for row, chosen in enumerate(rows):
            for key, score in chosen.items():
                q[own, row, keys.index(key)] = score
    whole = np.zeros_like(x.q)
    whole[:, :, :: run.share] = q.reshape(b, n, t, h).transpose(0, 2, 1, 3) / x.scale
    k = np.ascontiguousarray(k.reshape(b, n, s, h).transpose(0, 2, 1, 3))
    out = run(replace(x, q=whole, k=k, v=v)).out[:, :, :: run.share]
    return np.asarray(out.transpose(0, 2, 1, 3).reshape(b * n, t, -1), np.float64)


def tiles(run: Calls, r: Range) -> SumOrder:
    """Return the tiles of a softmax over keys.

    Raises:
        Unprobed: They leave no trace, or have no one size, or the shapes are too small.
    """
    x = run.x
    (batch, queries, _, h), (_, keys, heads, _) = x.q.shape, x.k.shape
    width = min(h - 1, queries // 2 + 3, keys)  # keys whose scores the queries of a head choose
    if width < 4 or x.v.shape[3] < 3:
        raise Unprobed("it needs 5 features of q, 3 of v, 2 queries and 4 keys")
    v = np.zeros_like(x.v)
    for column in range(3):
        v[:, column::3, :, column] = r.value
    starts = [min(lo, keys - width) for lo in range(0, keys - 3, width - 3)]
    windows = [range(lo, lo + width) for lo in starts]
    seen: dict[int, list[bool]] = {}
    for lo in range(0, len(windows), batch * heads):
        part = windows[lo : lo + batch * heads]
        tests = [[t for s in w[1:-2] for t in ((s - 1, s, s + 1), (s + 2, s + 1, s))] for w in part]
        if r is WIDE:
            rows = [[{a: r.low, c: r.low / 2, b: 0.0} for a, c, b in each] for each in tests]
        else:
            tests = [[(c, c, b) for _, c, b in each] for each in tests]
            rows = [[{a: r.low, b: 0.0} for a, _, b in each] for each in tests]
        out = _out(run, list(zip(part, rows, strict=True)), v)
        for own, each in enumerate(tests):
            for row, (a, _, b) in enumerate(each):
                value, edge = out[own, row, a % 3], b + (a > b)
                if not np.isfinite(value):
                    raise Unprobed(INFINITE)
                seen.setdefault(edge, [False, False])[a > b] |= bool(value)
    return tiles_between(seen, keys)


def tiles_between(seen: dict[int, list[bool]], keys: int) -> SumOrder:
    """Return the tiles of a softmax.

    Args:
        seen: for each key but the first two and the last, whether the key before it is in an
            earlier tile, and whether it is in a later one; both if they share no softmax.
        keys: how many keys there are.

    Raises:
        Unprobed: The tiles have no one size, or every key seems to be one.

    Example:
        >>> tiles_between({2: [False, False], 3: [False, False], 4: [True, False]}, 6).words
        'tiles of 4 keys, from the first to the last'
    """
    edges = {edge: (up, down) for edge, (up, down) in seen.items() if up or down}
    if not edges:
        return SumOrder(words=f"whole rows, or one tile of {keys} keys or more")
    if len(edges) == len(seen):
        raise Unprobed("exp of -110 is not 0 there, so its tiles leave no trace")
    block = gcd(*edges)
    if any(edge not in edges for edge in seen if edge % block == 0):
        raise Unprobed(f"its tiles have no one size: they end before keys {sorted(edges)[:8]}")
    parts = [edge for edge, way in edges.items() if all(way)]
    ways = {way for way in edges.values() if not all(way)}
    turns = {(True, False): KeyOrder.ASCENDING, (False, True): KeyOrder.DESCENDING}
    order = turns[ways.pop()] if len(ways) == 1 else None
    how = f", {TURNS[order]}" if order else ", neither up nor down" if ways else ""
    words = f"tiles of {block} keys{how}"
    if parts:
        size = gcd(*parts)
        words += f", where every {size} keys have a softmax of their own"
        words += f" (split_tiles={size // block})"
    return SumOrder(words=words, block=block, order=order)


def row_sum(run: Calls, r: Range) -> tuple[Tree, SumOrder]:
    """Return the order in which the first keys of a row are added up.

    Raises:
        Unprobed: Their sum cannot be seen in `out`, or the shapes are too small.
    """
    x = run.x
    (batch, queries, _, h), heads = x.q.shape, x.k.shape[2]
    count = min(NEAR, x.k.shape[1], h - 1, x.v.shape[3])
    if count < 3:
        raise Unprobed("it needs 3 keys and 4 features")
    chosen, v = range(count), np.zeros_like(x.v)
    for key in chosen:
        v[:, key, :, key] = 1.0

    def sees(rows: list[tuple[int, Row]]) -> np.ndarray:
        """Return whether 1 / l is not 1, where one key has P = 1 and others have some scores."""
        found = []
        for lo in range(0, len(rows), batch * heads * queries):
            part = rows[lo : lo + batch * heads * queries]
            each = [part[at : at + queries] for at in range(0, len(part), queries)]
            given = [(chosen, [{**low, i: 0.0} for i, low in own]) for own in each]
            out = _out(run, given, v)
            found += [out[n, t, i] for n, own in enumerate(each) for t, (i, _) in enumerate(own)]
        return np.asarray(np.array(found) != 1.0)

    if not sees([(0, {1: SEEN}), (1, {0: SEEN})]).all():
        raise Unprobed("out has too few bits to show the last bit of a row sum in binary32")
    if sees([(0, {1: LOST}), (1, {0: LOST})]).any():
        raise Unprobed("it has more bits than binary32")
    asked = [(i, a, b) for a, b in combinations(chosen, 2) for i in chosen if i not in (a, b)]
    sizes = np.full((count, count), count)
    for (_, a, b), is_apart in zip(
        asked, sees([(i, {a: LOST, b: LOST}) for i, a, b in asked]), strict=True
    ):
        sizes[a, b] -= is_apart
        sizes[b, a] = sizes[a, b]
    tree = tree_from(sizes)
    name = SumOrder(words=_lanes(count)[tree]) if tree in _lanes(count) else named_order(tree)
    return tree, replace(name, words=f"{name.words}, of the first {count} keys", block=None)


def _lanes(count: int) -> dict[Tree, str]:
    """Return the orders of `RowSum` in lanes for the first keys of a tile, with their words."""

    def lane(number: int, lanes: int, width: int) -> Tree:
        first, *rest = [key for key in range(count) if key // width % lanes == number]
        tree: Tree = first
        for key in rest:
            tree = (tree, key)
        return tree

    if count < 16:
        return {}
    a, b, c, d = (lane(n, 4, 2) for n in range(4))
    pairs = [(lane(n, 8, 1), lane(n + 2, 8, 1)) for n in (0, 4, 1, 5)]
    own = [tuple((lane(n, 16, 1), lane(n + 8, 16, 1)) for n in (m, m + 1)) for m in (0, 2, 4, 6)]
    four = "in four lanes of column pairs"
    return {
        ((a, c), (b, d)): f"{four}, then (l0 + l2) + (l1 + l3) (row_sum=lanes or tiles)",
        ((a, b), (c, d)): f"{four}, then (l0 + l1) + (l2 + l3) (row_sum=tile-lanes or groups)",
        ((pairs[0], pairs[1]), (pairs[2], pairs[3])): "in eight lanes (row_sum=eights)",
        ((own[0], own[1]), (own[2], own[3])): "in sixteen lanes (row_sum=sixteens)",
    }
