"""`roundscope accumulators`: how sums of products are biased on tensor cores, against K.

They stand beside sums in binary32 rounded to nearest even. The error of a sum is (|c| - |exact|) /
sum |a_k b_k| in units of u = 2^-24, half an ulp of binary32 at 1; below 0 it is toward zero.
Everything is computed, and no results file is kept.

Behind it is --order, which finds the tree of a sum, by the idea of FPRev (arXiv 2411.00442). Of n
terms that are all a small u, replace term i by M and term j by -M, where M is so large that any sum
of u's vanishes beside it. What is added to M before -M arrives is lost, so the result is u times
the number of terms outside of the smallest subtree that contains i and j. These sizes determine the
tree: two terms are in different children of a node exactly if no smaller subtree contains both. A
node with more than two children adds them at once, as tensor cores do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.emu import Accumulator, Order, dot, round_to
from roundscope.experiments.catalogue import ACCUMULATORS
from roundscope.experiments.framework import command
from roundscope.experiments.framework.command import computed
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.figures.series import legend
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import console, plain, print_json

LENGTHS = (16, 64, 256, 1024, 4096, 16384)
SEEDS = range(8)
SIDE = 24  # rows and columns of a result, which has SIDE^2 sums for each seed
PROMOTED = 128  # after how many products DeepSeek-V3 adds the sum up in binary32
UNIT = 2.0**-24
POSITIVE, SIGNED = "products above 0", "products of either sign"
Sum = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A way to add: its name, the format of its factors, and the sum."""

    name: str
    operand: str
    add: Sum


def _core(arch: str, operand: str) -> Sum:
    return partial(dot, accumulator=Accumulator.tensor_core(arch, operand))


def promoted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Hopper's FP8 sums of 128 products, added in binary32 (arXiv 2412.19437, 3.3.2)."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for lo in range(0, a.shape[1], PROMOTED):
        part = _core("hopper", "e4m3fn")(a[:, lo : lo + PROMOTED], b[lo : lo + PROMOTED])
        total += part.astype(np.float32)
    return total.astype(np.float64)


NEAREST = "BF16, binary32 to nearest"
HOPPER = "BF16, Hopper: 25 bits"
HOPPER_FP8 = "E4M3, Hopper: 13 bits"
MODELS = (
    Model(name=NEAREST, operand="bf16", add=dot),
    Model(name="BF16, Ampere: 24 bits", operand="bf16", add=_core("ampere", "bf16")),
    Model(name=HOPPER, operand="bf16", add=_core("hopper", "bf16")),
    Model(name="E4M3, Blackwell: 25 bits", operand="e4m3fn", add=_core("blackwell", "e4m3fn")),
    Model(name=HOPPER_FP8, operand="e4m3fn", add=_core("hopper", "e4m3fn")),
    Model(name="E4M3, Hopper, FP32 every 128", operand="e4m3fn", add=promoted),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A model on inputs of one kind at one K: the mean error over seeds and its rms, both in u."""

    model: str
    inputs: str
    k: int
    lean: Estimate
    rms: float


def factors(seed: int, k: int, operand: str, inputs: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (SIDE, K) and (K, SIDE): normal numbers or their magnitudes, in the format."""
    rng = np.random.default_rng((seed, k))
    made = (rng.standard_normal(shape).astype(np.float32) for shape in ((SIDE, k), (k, SIDE)))
    a, b = (round_to(np.abs(x) if inputs == POSITIVE else x, operand) for x in made)
    return a, b


def errors(model: Model, seed: int, k: int, inputs: str) -> np.ndarray:
    """Return the errors of SIDE^2 sums, in u."""
    a, b = factors(seed, k, model.operand, inputs)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    signed = np.abs(model.add(a, b)) - np.abs(wide_a @ wide_b)
    found: np.ndarray = signed / (np.abs(wide_a) @ np.abs(wide_b)) / UNIT
    return found


def measured(lengths: Sequence[int]) -> Iterator[Point]:
    """Yield every point, one by one."""
    for inputs in (POSITIVE, SIGNED):
        for model in MODELS:
            for k in lengths:
                found = {seed: errors(model, seed, k, inputs) for seed in SEEDS}
                yield Point(
                    model=model.name,
                    inputs=inputs,
                    k=k,
                    lean=mean({s: float(e.mean()) for s, e in found.items()}),
                    rms=float(np.sqrt(np.mean([np.square(e).mean() for e in found.values()]))),
                )


Points = Sequence[Point]
CAPTION = (
    f"{len(SEEDS)} seeds of {SIDE} x {SIDE} sums of normal numbers or their magnitudes; 95 % "
    "intervals over seeds. Models of arXiv 2511.10909, equal in every bit to MMA-Sim where tests "
    "compare them. FP32 every 128: sums of 128 products added in binary32, as DeepSeek-V3 does."
)


def run(*, out: Path, as_json: bool) -> int:
    """Write report.html and accumulators.json; return 0, or 130 after Ctrl-C. Raises UsageError."""
    line = f"roundscope {ACCUMULATORS.command}"
    return command.run(study(), out=out, command=line, as_json=as_json)


def study() -> Study[Points]:
    """Return the study, which has one scale."""
    total = 2 * len(MODELS) * len(LENGTHS)
    return Study(
        name=ACCUMULATORS.name,
        question=ACCUMULATORS.question,
        measure=lambda out, draw: computed("sums", total, measured(LENGTHS)),
        unit="points",
        answer=answer,
        figures=[
            Figure(title="Mean error against the length of the sum", draw=picture, caption=CAPTION)
        ],
        tables=[
            Table(
                name="points",
                title="Mean error in u = 2^-24; below 0: toward zero",
                heads=("mean error, u", "K", *(model.name for model in MODELS)),
                rows=_rows,
                records=plain,
                shown=tuple(range(2 + len(MODELS))),
            )
        ],
        config={"unit": UNIT, "seeds": len(SEEDS), "sums": SIDE * SIDE},
    )


def answer(points: Points) -> str:
    """Return two sentences on the longest sums."""
    longest = {(p.model, p.inputs): p for p in points if p.k == LENGTHS[-1]}
    bias = {name: longest[name, POSITIVE].lean.mean for name in (HOPPER, HOPPER_FP8, NEAREST)}
    part = {name: f"{abs(x) * UNIT:.1e}" for name, x in bias.items()}
    signed, e = longest[HOPPER_FP8, SIGNED], longest[HOPPER_FP8, SIGNED].lean
    return (
        f"Toward zero: sums of {LENGTHS[-1]:,} products above 0 are {part[HOPPER]} of themselves "
        f"too small on Hopper in BF16 and {part[HOPPER_FP8]} in E4M3, where binary32 to nearest is "
        f"off by {part[NEAREST]} on average. With products of either sign E4M3's mean error is "
        f"{e.mean:.2g} [{e.low:.2g}, {e.high:.2g}] u at an rms of {signed.rms:.3g} u."
    )


def _rows(points: Points) -> list[list[str]]:
    by = {(p.inputs, p.k, p.model): p for p in points}
    return [
        [inputs, f"{k:,}", *(f"{by[inputs, k, model.name].lean.mean:.3g}" for model in MODELS)]
        for inputs in (POSITIVE, SIGNED)
        for k in LENGTHS
    ]


def picture(points: Points) -> Picture:
    """Draw a panel for each kind of input; dots have 95 % intervals over seeds."""
    figure, axes = canvas(4.3, 1, 2, sharey=True)
    for ax, inputs in zip(axes[0], (POSITIVE, SIGNED), strict=True):
        for model, colour, marker in zip(MODELS, COLOURS, MARKERS, strict=False):
            own = [p for p in points if p.inputs == inputs and p.model == model.name]
            y, half = [p.lean.mean for p in own], [p.lean.high - p.lean.mean for p in own]
            style = {"color": colour, "marker": marker, "ms": 5, "lw": 1.3, "capsize": 2}
            ax.errorbar([p.k for p in own], y, half, label=model.name, **style)
        ax.axhline(0.0, color=INK, lw=0.8)
        ax.set_xscale("log", base=2)
        ax.set_yscale("symlog", linthresh=1.0, linscale=0.6)
        ax.set_xlabel("K, products in a sum")
        ax.set_title(inputs, fontsize=10, loc="left", color=INK)
    axes[0, 0].set_ylabel("mean error in u = 2^-24; below 0: toward zero")
    legend(figure, axes[0, 0], 3, loc="outside lower center", fontsize=8)
    return figure


TERMS = 64
# M and u: FP16 and every wider type has both; SMALL times TERMS is below half an ulp of MASK in
# binary32
MASK = 2.0**14
SMALL = 2.0**-20
CHUNKS = (4, 8, 16, 32)  # of the orders that are known
# (rows, TERMS), (TERMS, columns) -> (rows, columns)
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
# a term, or the children of a node, each of them a Tree, ordered by their first terms
Tree = int | tuple[Any, ...]


def sizes(product: Product, terms: int = TERMS) -> np.ndarray:
    """Return (terms, terms), the sizes of the smallest common subtrees. Raises ValueError."""
    first, second = np.triu_indices(terms, 1)
    a = np.full((first.size, terms), SMALL, np.float32)
    pairs = np.arange(first.size)
    a[pairs, first], a[pairs, second] = MASK, -MASK
    left = np.asarray(product(a, np.ones((terms, TERMS), np.float32)), np.float64)[:, 0] / SMALL
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
