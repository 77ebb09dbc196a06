"""Sums of products on both engines, and their reference: a fold of fractions."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import jax
import numpy as np

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.ops import Ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding
from roundscope.emu.roundings.random import event_bits
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate

FOLDS = (
    Accumulator(order=Order.ASCENDING),
    Accumulator(order=Order.PAIRWISE),
    Accumulator(order=Order.HALVES),
    Accumulator(order=Order.CHUNKED, chunk=4),
    Accumulator(order=Order.CHUNKED, chunk=1),
    Accumulator(order=Order.CHUNKED, chunk=100),
)
T, N = 3, 2
ODD = rounding("fp64", "to-odd")


def with_step(acc: Accumulator, r: Rounding) -> Accumulator:
    return Accumulator(order=acc.order, chunk=acc.chunk, step=r)


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def operands(
    count: int, dtype: str = "bf16", seed: int = 0, t: int = T, n: int = N
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a (K, T), b (K, N), init (T, N): numbers of the format, of mixed sizes."""
    rng = np.random.default_rng([seed, count])
    r = rounding(dtype)
    shapes = ((count, t), (count, n), (t, n))
    a, b, init = (
        numpy_ops().round(rng.normal(size=s) * 2.0 ** rng.integers(-3, 3, s), r, None)
        for s in shapes
    )
    return a, b, init


def on_xla(acc: Accumulator, *arrays: np.ndarray, steps: bool = False) -> Any:
    """Compiled, as attention does."""

    def run(a: Any, b: Any, init: Any) -> Any:
        seen: Any = [] if steps else None
        ops = xla_ops(opaque_zero(a))
        return accumulate(ops, acc, a, b, init, seeded_step(ops, acc.step, init.shape), seen), seen

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(run)(*arrays))


def on_numpy(acc: Accumulator, *arrays: np.ndarray, steps: bool = False) -> Any:
    seen: Any = [] if steps else None
    step = seeded_step(numpy_ops(), acc.step, arrays[2].shape)
    with np.errstate(all="ignore"):  # as emu.dot: overflow and inf - inf are results
        return accumulate(numpy_ops(), acc, *arrays, step, seen), seen


def seeded_step(ops: Ops, r: Rounding, shape: tuple[int, ...]) -> Callable[[Any, Any], Any] | None:
    """The stochastic step: random bits of every addition by its index."""
    if r.mode is not RoundingMode.STOCHASTIC:
        return None
    xp = ops.xp
    rows, columns = xp.arange(shape[0])[:, None], xp.arange(shape[1])
    return lambda k, total: ops.round(
        total, r, event_bits(xp, r.seed, 7, rows, columns, k + 1).reshape(shape)
    )


class Fold:
    """One output of a sum of products, folded in fractions; `seen` are (before, after) of each
    addition.
    """

    def __init__(self, r: Rounding, random: Callable[[int], int]) -> None:
        self.r, self.random = r, random
        self.seen: list[tuple[float, float]] = []

    def step(self, x: float, y: Fraction | float) -> float:
        """x + y, rounded once; before that it is seen in binary64, to odd.

        A sum of 0 has a sign of its own.
        """
        exact: Any = Fraction(x) + Fraction(y) if math.isfinite(x) and math.isfinite(y) else 0
        exact = exact or x + float(y)
        after = judge(exact, self.r, self.random(len(self.seen)))
        self.seen.append((judge(exact, ODD), after))
        return after

    def ascending(self, start: float, products: list[Fraction]) -> float:
        for p in products:
            start = self.step(start, p)
        return start

    def pairwise(self, start: float, products: list[Fraction]) -> float:
        level: list[Any] = list(products)
        while len(level) > 1:
            pairs = [self.step(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(level) // 2 * 2 :]
        return self.step(start, level[0])

    def halves(self, start: float, products: list[Fraction]) -> float:
        level: list[Any] = list(products)
        while len(level) > 1:
            half = len(level) // 2
            level = [self.step(level[i], level[i + half]) for i in range(half)] + level[2 * half :]
        return self.step(start, level[0])

    def chunked(self, start: float, products: list[Fraction], chunk: int) -> float:
        for lo in range(0, len(products), chunk):
            start = self.step(start, self.ascending(0.0, products[lo : lo + chunk]))
        return start


def reference(
    acc: Accumulator, a: np.ndarray, b: np.ndarray, init: np.ndarray
) -> Iterator[tuple[int, int, float, Fold]]:
    """(row, column, sum, fold) of every output, in the order that `Order` documents."""
    t, n = init.shape
    for i, j in product(range(t), range(n)):
        fold = Fold(acc.step, lambda k, i=i, j=j: drawn(acc.step, init.shape, k, i, j))
        products = [
            Fraction(x) * Fraction(y)
            for x, y in zip(a[:, i].tolist(), b[:, j].tolist(), strict=True)
        ]
        start = float(init[i, j])
        match acc.order:
            case Order.ASCENDING:
                total = fold.ascending(start, products)
            case Order.PAIRWISE:
                total = fold.pairwise(start, products)
            case Order.HALVES:
                total = fold.halves(start, products)
            case Order.CHUNKED:
                total = fold.chunked(start, products, acc.chunk)
            case _:
                total = judge(
                    sum(products, Fraction(start)), acc.step, drawn(acc.step, init.shape, 0, i, j)
                )  # type: ignore[arg-type]
        yield i, j, total, fold


def drawn(r: Rounding, shape: tuple[int, ...], k: int, i: int, j: int) -> int:
    """The random bits of addition k at one output."""
    if r.mode is not RoundingMode.STOCHASTIC:
        return 0
    bits = event_bits(
        np, r.seed, 7, np.arange(shape[0])[:, None], np.arange(shape[1]), k + 1
    ).reshape(shape)
    return int(bits[i, j])


def same(x: float, y: float) -> bool:
    return (math.isnan(x) and math.isnan(y)) or (
        x == y and math.copysign(1, x) == math.copysign(1, y)
    )


def assert_folded(
    acc: Accumulator, arrays: tuple[np.ndarray, ...], total: np.ndarray, seen: Any = None
) -> None:
    """The outputs, and the additions where they were kept, are the reference's in every bit."""
    if seen is not None:
        before, after = (np.concatenate([pair[side] for pair in seen]) for side in (0, 1))
    for i, j, want, fold in reference(acc, *arrays):
        assert same(float(total[i, j]), want), (
            f"{acc} at {i, j}: {total[i, j]!r}, expected {want!r}"
        )
        if seen is not None:
            got = list(zip(before[:, i, j].tolist(), after[:, i, j].tolist(), strict=True))
            assert len(got) == len(fold.seen)
            assert all(
                same(x, u) and same(y, v) for (x, y), (u, v) in zip(got, fold.seen, strict=True)
            ), f"{acc} at {i, j}"
