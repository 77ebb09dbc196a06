"""The order of the additions of a sum, found by probing it.

The method is that of FPRev (arXiv 2411.00442). Let two terms i and j be M and -M, where M is so
large that M + n = M, and all other terms 1. What is added to M before -M comes is lost, so the sum
is the number of terms that are added after the two have met: n minus the number of leaves under
their lowest common ancestor in the tree of the additions. From these sizes the tree is rebuilt. A
node of several children is an addition of several terms at once, as in a tensor core.

Trees are exact: a leaf is the number of its term, a node the tuple of its children, by their first
leaves. Whatever has no such tree is refused and not guessed.

What cannot be seen: the order inside one addition of several terms, whose result does not depend on
it; which of two summands came first; a start of 0; where a running sum goes from one tile to the
next in the same order; and additions whose order differs from call to call, as that of atomics.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

Tree: TypeAlias = int | tuple["Tree", ...]
Probe: TypeAlias = Callable[[np.ndarray], np.ndarray]
Group: TypeAlias = tuple[int, ...]

LARGE = 2.0**90  # M, by default
MOST = 255  # ones in a probe, which a result of 8 bits can count
FEW = 17  # leaves of which every pair is asked for at once
INFINITE = "its probes give infinite or NaN numbers"
AWAY = 0.25  # how far a result may be from a whole number


class Unprobed(ValueError):
    """A sum has no order that probes can find; the text says why, as the end of a sentence."""


def tree_of(probe: Probe, n: int, *, large: float = LARGE, most: int = MOST) -> Tree | None:
    """Return the tree of the additions of a sum, or None if its sum is exact.

    A sum that is exact, with one rounding at its end, has no order: all ones survive. Between n log
    n and n^2 / 2 pairs of terms are asked for, in at most about 2 log n + 2 calls; each pair takes
    one row, or one for every `most` ones.

    Args:
        probe: the sums of rows of terms, (r, n) -> (r,). Terms are `large`, -`large`, 0 and 1.
        n: the number of terms, from 1 to 800, since a chain nests as deep.
        large: M, a power of two. It must be so large that M + n = M in the sum's own format, and
            M must be a number of the terms' format.
        most: how many ones a row has at most; the results must count them exactly.

    Raises:
        Unprobed: Results are not finite, or no whole numbers, or not those of a tree.

    Example:
        >>> import numpy as np
        >>> def halves(rows):  # (x0 + x1) + (x2 + x3), in float32
        ...     x = rows.astype(np.float32)
        ...     return (x[:, 0] + x[:, 1]) + (x[:, 2] + x[:, 3])
        >>> tree_of(halves, 4)
        ((0, 1), (2, 3))
    """
    sizes = np.zeros((n, n), int)
    _check_ones(probe, n, most)
    # groups of leaves that hang below one node, with a leaf of its other children and its size, and
    # whether they may all be children of that node
    todo: list[tuple[Group, int | None, int, bool]] = [(tuple(range(n)), None, n, False)]
    while todo:
        asked = [
            (i, j, group, outside, above)
            for group, outside, above, is_flat in todo
            for i, j in _pairs(group, is_flat)
            if not sizes[i, j]
        ]
        kept = _survivors(probe, n, [(i, j, g, o) for i, j, g, o, _ in asked], large, most)
        for (i, j, group, outside, above), count in zip(asked, kept, strict=True):
            whole = outside is not None and count == 0
            sizes[i, j] = sizes[j, i] = (
                above if whole else len(group) + (outside is not None) - count
            )
        first = todo[0][0]
        if len(first) == n > 2 and (sizes[first[n // 2]] <= 2).all():
            return None
        todo = [
            (members, _pivot(group), size, size == above and len(members) == len(group) - 1)
            for group, _, above, _ in todo
            for size, members in _classes(group, sizes)
            if len(members) > 1
        ]
    return tree_from(sizes)


def tree_from(sizes: np.ndarray) -> Tree:
    """Return the tree in which leaves i and j have sizes[i, j] leaves under their lowest ancestor.

    Args:
        sizes: whole numbers, (n, n); only those that decide are read.

    Raises:
        Unprobed: The sizes are those of no tree.

    Example:
        >>> import numpy as np
        >>> tree_from(np.array([[1, 2, 3], [2, 1, 3], [3, 3, 1]]))
        ((0, 1), 2)
    """
    [(_, _, tree)] = _built(tuple(range(len(sizes))), sizes, len(sizes) + 1)
    return tree


def _built(group: Group, sizes: np.ndarray, above: int) -> list[tuple[int, int, Tree]]:
    """Return (first leaf, leaves, tree) of each child of a node of `above` leaves in a group."""
    own = [(_pivot(group), 1, _pivot(group))]
    tree: list[tuple[int, int, Tree]] = [*own]
    for size, members in _classes(group, sizes):
        tree = sorted([*tree, *_built(members, sizes, size)], key=lambda child: child[0])
        if size == above:
            return tree
        count = sum(c for _, c, _ in tree)
        if count != size:
            raise Unprobed(
                f"its probes fit no tree of additions: {size} terms are lost where {count} are"
                " below; the order may differ from call to call"
            )
        tree = [(tree[0][0], size, tuple(t for _, _, t in tree))]
    return tree


def _pivot(group: Group) -> int:
    """Return the leaf whose ancestors divide a group; from the middle, chains take few levels."""
    return group[len(group) // 2]


def _pairs(group: Group, is_flat: bool) -> Iterator[tuple[int, int]]:
    """Yield every pair of a group that is small or may be flat, else those of its pivot."""
    if is_flat or len(group) <= FEW:
        yield from combinations(group, 2)
    else:
        yield from ((_pivot(group), j) for j in group if j != _pivot(group))


def _classes(group: Group, sizes: np.ndarray) -> list[tuple[int, Group]]:
    """Return the sizes of the ancestors of the pivot, and which leaves of the group join there."""
    i = _pivot(group)
    found: dict[int, list[int]] = {}
    for j in group:
        if j != i:
            found.setdefault(int(sizes[i, j]), []).append(j)
    return [(size, tuple(members)) for size, members in sorted(found.items())]


def _check_ones(probe: Probe, n: int, most: int) -> None:
    """Raise Unprobed unless ones alone are counted exactly."""
    rows = np.zeros((-(-n // most), n), np.float32)
    for row, lo in zip(rows, range(0, n, most), strict=True):
        row[lo : lo + most] = 1.0
    got = _counted(probe(rows))
    if (got != rows.sum(1)).any():
        first = int(np.argmax(got != rows.sum(1)))
        raise Unprobed(f"{int(rows[first].sum())} ones add up to {got[first]}")


def _counted(sums: np.ndarray) -> np.ndarray:
    """Return results as whole numbers."""
    sums = np.asarray(sums, np.float64)
    if not np.isfinite(sums).all():
        raise Unprobed(INFINITE)
    whole = np.rint(sums)
    if (np.abs(sums - whole) > AWAY).any():
        far = sums[np.argmax(np.abs(sums - whole))]
        raise Unprobed(f"its probes give {far:.4g}, where they must give a whole number")
    return np.asarray(whole, int)


def _survivors(
    probe: Probe,
    n: int,
    asked: Sequence[tuple[int, int, Group, int | None]],
    large: float,
    most: int,
) -> list[int]:
    """Return how many ones survive, for (i, j, group, a leaf outside of it): M and -M at i and j,
    ones at the rest of the group and outside.
    """
    rows, owners = [], []
    for own, (i, j, group, outside) in enumerate(asked):
        ones = [k for k in (*group, *(() if outside is None else (outside,))) if k not in (i, j)]
        for lo in range(0, max(len(ones), 1), most):
            row = np.zeros(n, np.float32)
            row[ones[lo : lo + most]] = 1.0
            row[i], row[j] = large, -large
            rows.append(row)
            owners.append(own)
    if not rows:
        return []
    counts = _counted(probe(np.stack(rows)))
    return [int(c) for c in np.bincount(owners, counts, len(asked))]


def leaves(tree: Tree) -> list[int]:
    """Return the leaves of a tree, from left to right.

    Example:
        >>> leaves(((0, 3), 1))
        [0, 3, 1]
    """
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack += node[::-1]
        else:
            found.append(node)
    return found


def folded(tree: Tree, leaf: Callable[[int], Any], node: Callable[[list[Any]], Any]) -> Any:
    """Return what a function of leaves and one of the results of children make of a tree.

    Example:
        >>> folded(((0, 3), 1), lambda k: k, sum)
        4
    """
    done: list[Any] = []
    stack: list[tuple[Tree, bool]] = [(tree, False)]
    while stack:
        own, is_ready = stack.pop()
        if not isinstance(own, tuple):
            done.append(leaf(own))
        elif is_ready:
            done[-len(own) :] = [node(done[-len(own) :])]
        else:
            stack += [(own, True), *((child, False) for child in own[::-1])]
    return done[0]


def part_of(tree: Tree, kept: Sequence[int]) -> Tree:
    """Return the tree of some leaves alone, which get the numbers of their places in `kept`.

    Args:
        tree: a tree.
        kept: one leaf or more.

    Example:
        >>> part_of((((0, 1), 2), 3), [3, 1, 2])
        (0, (1, 2))
    """
    numbers = {k: number for number, k in enumerate(kept)}

    def joined(children: list[tuple[int, Tree] | None]) -> tuple[int, Tree] | None:
        own = sorted((c for c in children if c is not None), key=lambda child: child[0])
        return (own[0][0], tuple(t for _, t in own)) if len(own) > 1 else own[0] if own else None

    found = folded(tree, lambda k: (numbers[k], numbers[k]) if k in numbers else None, joined)
    part: Tree = found[1]
    return part


def steps_of(tree: Tree) -> list[tuple[Tree, ...]]:
    """Return what is added to a running sum, in the order of the steps.

    The running sum is the child of most leaves; the first step is the deepest node.

    Example:
        >>> steps_of((((0, 1), 2), (3, 4)))
        [(0, 1), (2,), ((3, 4),)]
    """
    steps: list[tuple[Tree, ...]] = []
    while isinstance(tree, tuple):
        counts = [len(leaves(child)) for child in tree]
        main = int(np.argmax(counts))
        if counts[main] == 1:
            break
        steps.append((*tree[:main], *tree[main + 1 :]))
        tree = tree[main]
    steps.append(tree if isinstance(tree, tuple) else (tree,))
    return steps[::-1]
