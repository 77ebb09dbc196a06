"""In which order does a device add? `roundscope accumulators --order` finds the tree of a sum.

The idea is FPRev's (arXiv 2411.00442). Of n terms that are all a small u, replace term i by M and
term j by -M, where M is so large that any sum of u's vanishes beside it. What is added to M before
-M arrives is lost, so the result is u times the number of terms outside of the smallest subtree
that contains i and j. The n (n - 1) / 2 sizes of subtrees determine the tree: two terms are in
different children of a node exactly if no smaller subtree contains both. A node with more than two
children adds them at once, as tensor cores do.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import combinations, groupby
from typing import Any

import numpy as np

from roundscope.emu import Accumulator, Order, dot
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import console, print_json

TERMS = 64
# M and u: FP16 and every wider type has both; UNIT times TERMS is below half an ulp of MASK in
# binary32
MASK = 2.0**14
UNIT = 2.0**-20
CHUNKS = (4, 8, 16, 32)  # of the orders that are known
# (rows, TERMS), (TERMS, columns) -> (rows, columns)
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
# a term, or the children of a node, each of them a Tree, ordered by their first terms
Tree = int | tuple[Any, ...]


def sizes(product: Product, terms: int = TERMS) -> np.ndarray:
    """Return (terms, terms), the sizes of the smallest common subtrees. Raises ValueError."""
    first, second = np.triu_indices(terms, 1)
    a = np.full((first.size, terms), UNIT, np.float32)
    pairs = np.arange(first.size)
    a[pairs, first], a[pairs, second] = MASK, -MASK
    left = np.asarray(product(a, np.ones((terms, TERMS), np.float32)), np.float64)[:, 0] / UNIT
    if not np.array_equal(left, np.round(left)) or left.min() < 0 or left.max() > terms - 2:
        raise ValueError(
            "product: what is left of the small terms is no whole number of them; its sums do not"
            " vanish beside the large one"
        )
    size = np.zeros((terms, terms), int)
    size[first, second] = size[second, first] = terms - left
    return size


def tree_of(size: np.ndarray, terms: tuple[int, ...] | None = None) -> Tree:
    """Return the tree whose subtrees have these sizes. Raises ValueError where there is none."""
    terms = tuple(range(len(size))) if terms is None else terms
    if len(terms) == 1:
        return terms[0]
    children: list[list[int]] = []
    for term in terms:
        child = next((c for c in children if size[c[0], term] < len(terms)), None)
        if child is None:
            children.append([term])
        else:
            child.append(term)
    across = (size[a, b] for x, y in combinations(children, 2) for a in x for b in y)
    if len(children) < 2 or any(n != len(terms) for n in across):
        raise ValueError("product: the sizes of its subtrees are those of no tree")
    return tuple(tree_of(size, tuple(child)) for child in children)


def told(product: Product) -> str:
    """Return the order in words: an accumulator of `emu` with this tree, or the tree's outline."""
    try:
        tree = tree_of(sizes(product))
    except ValueError as error:
        return f"not found: {error}"
    known = (name for name, own in _known().items() if own == tree)
    return next(known, f"another tree: {outline(tree)}")


@cache
def _known() -> dict[str, Tree]:
    sums = {
        "ascending": Accumulator(),
        "pairwise": Accumulator(order=Order.PAIRWISE),
        "halves": Accumulator(order=Order.HALVES),
    }
    for c in CHUNKS:
        sums[f"chunks of {c}, each ascending"] = Accumulator(order=Order.CHUNKED, chunk=c)
    trees = {name: tree_of(sizes(partial(dot, accumulator=acc))) for name, acc in sums.items()}
    for c in CHUNKS:
        tree: Tree = tuple(range(c))
        for lo in range(c, TERMS, c):
            tree = (tree, *range(lo, lo + c))
        trees[f"{c} and the sum so far at once, ascending: a tensor core"] = tree
    return trees


def outline(tree: Tree, depth: int = 3) -> str:
    """Return a tree's upper nodes as text: 16..31 is a run, () a node, ... what is deeper."""
    if isinstance(tree, int):
        return str(tree)
    if depth == 0:
        return "(...)"
    parts: list[str] = []

    def start(at: tuple[int, Tree]) -> int | None:
        return at[1] - at[0] if isinstance(at[1], int) else None

    for _, run in groupby(enumerate(tree), start):
        children = [child for _, child in run]
        if isinstance(children[0], int) and len(children) > 2:
            parts.append(f"{children[0]}..{children[-1]}")
        else:
            parts += [outline(child, depth - 1) for child in children]
    return f"({' '.join(parts)})"


def _products() -> dict[str, Product]:
    import jax
    import jax.numpy as jnp

    def on_jax(dtype: Any, precision: Any) -> Product:
        multiply = jax.jit(
            lambda a, b: jnp.matmul(a, b, precision=precision, preferred_element_type=jnp.float32)
        )
        return lambda a, b: np.asarray(multiply(jnp.asarray(a, dtype), jnp.asarray(b, dtype)))

    device = jax.devices()[0].device_kind
    highest, default = jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT
    return {
        "NumPy, float32": np.matmul,
        f"JAX on {device}, float32, highest precision": on_jax(jnp.float32, highest),
        f"JAX on {device}, float32, default precision": on_jax(jnp.float32, default),
        f"JAX on {device}, bfloat16": on_jax(jnp.bfloat16, default),
        f"JAX on {device}, float16": on_jax(jnp.float16, default),
    }


def show(*, as_json: bool) -> None:
    """Print in which order NumPy's and JAX's products add on this machine."""
    from rich.table import Table

    with bar("orders", 1):
        ways = {name: told(product) for name, product in _products().items()}
    if as_json:
        records = [{"name": name, "order": order} for name, order in ways.items()]
        print_json({"terms": TERMS, "ways": records})
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("product", overflow="fold")
    table.add_column(f"order of {TERMS} terms", overflow="fold")
    for name, order in ways.items():
        table.add_row(name, order)
    console().print(table)
