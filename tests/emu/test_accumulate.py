"""Sums of products against a fold of fractions, on both engines."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from emu.accumulate import Accumulator, Order, accumulate
from emu.aligned import Alignment
from emu.formats import format_named
from emu.judge import judge
from emu.numpy_ops import numpy_ops
from emu.ops import Ops
from emu.random import event_bits
from emu.rounding import BINARY32, BINARY64, Rounding, RoundingMode, rounding
from emu.xla_ops import opaque_zero, xla_ops

STEPS = tuple(
    rounding(f, m)
    for f, m in (
        ("fp32", None), ("bf16", None), ("fp16", None), ("e4m3fn", None), ("fp32", "toward-zero"), ("bf16", "toward-zero"),
        ("fp16", "toward-positive"), ("bf16", "toward-negative"), ("e4m3fn", "to-odd"), ("bf16", "ties-to-away"),
    )
)  # fmt: skip
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


def operands(count: int, dtype: str = "bf16", seed: int = 0, t: int = T, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a (K, T), b (K, N), init (T, N): numbers of the format, of mixed sizes."""
    rng = np.random.default_rng([seed, count])
    r = rounding(dtype)
    shapes = ((count, t), (count, n), (t, n))
    a, b, init = (numpy_ops().round(rng.normal(size=s) * 2.0 ** rng.integers(-3, 3, s), r, None) for s in shapes)
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
    return lambda k, total: ops.round(total, r, event_bits(xp, r.seed, 7, rows, columns, k + 1).reshape(shape))


# ------------------------------------------------------------------------------------- the reference


class Fold:
    """One output of a sum of products, folded in fractions; `seen` are (before, after) of each addition."""

    def __init__(self, r: Rounding, random: Callable[[int], int]) -> None:
        self.r, self.random = r, random
        self.seen: list[tuple[float, float]] = []

    def step(self, x: float, y: Fraction | float) -> float:
        """x + y, rounded once; before that it is seen in binary64, to odd. A sum of 0 has a sign of its own."""
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


def reference(acc: Accumulator, a: np.ndarray, b: np.ndarray, init: np.ndarray) -> Iterator[tuple[int, int, float, Fold]]:
    """(row, column, sum, fold) of every output, in the order that `Order` documents."""
    t, n = init.shape
    for i, j in product(range(t), range(n)):
        fold = Fold(acc.step, lambda k, i=i, j=j: drawn(acc.step, init.shape, k, i, j))
        products = [Fraction(x) * Fraction(y) for x, y in zip(a[:, i].tolist(), b[:, j].tolist(), strict=True)]
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
                total = judge(sum(products, Fraction(start)), acc.step, drawn(acc.step, init.shape, 0, i, j))  # type: ignore[arg-type]
        yield i, j, total, fold


def drawn(r: Rounding, shape: tuple[int, ...], k: int, i: int, j: int) -> int:
    """The random bits of addition k at one output."""
    if r.mode is not RoundingMode.STOCHASTIC:
        return 0
    bits = event_bits(np, r.seed, 7, np.arange(shape[0])[:, None], np.arange(shape[1]), k + 1).reshape(shape)
    return int(bits[i, j])


def same(x: float, y: float) -> bool:
    return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) == math.copysign(1, y))


def assert_folded(acc: Accumulator, arrays: tuple[np.ndarray, ...], total: np.ndarray, seen: Any = None) -> None:
    """The outputs, and the additions where they were kept, are the reference's in every bit."""
    if seen is not None:
        before, after = (np.concatenate([pair[side] for pair in seen]) for side in (0, 1))
    for i, j, want, fold in reference(acc, *arrays):
        assert same(float(total[i, j]), want), f"{acc} at {i, j}: {total[i, j]!r}, expected {want!r}"
        if seen is not None:
            got = list(zip(before[:, i, j].tolist(), after[:, i, j].tolist(), strict=True))
            assert len(got) == len(fold.seen)
            assert all(same(x, u) and same(y, v) for (x, y), (u, v) in zip(got, fold.seen, strict=True)), f"{acc} at {i, j}"


# ------------------------------------------------------------------------------------- folds


@pytest.mark.parametrize("r", STEPS, ids=str)
@pytest.mark.parametrize("acc", FOLDS, ids=lambda a: f"{a.order}{a.chunk}")
def test_every_order_is_the_fold_of_fractions(acc: Accumulator, r: Rounding) -> None:
    """K from 1 to sizes that no chunk divides; every addition kept."""
    acc = with_step(acc, r)
    for count in (1, 2, 5, 16, 19):
        arrays = operands(count)
        total, seen = on_numpy(acc, *arrays, steps=True)
        assert_folded(acc, arrays, total, seen)
        assert np.array_equal(total, on_numpy(acc, *arrays)[0], equal_nan=True)


@pytest.mark.parametrize("acc", [*FOLDS, Accumulator(order=Order.EXACT)], ids=lambda a: f"{a.order}{a.chunk}")
def test_a_stochastic_step_draws_by_its_index(acc: Accumulator) -> None:
    """Addition k of the documented order draws with index k, from 0."""
    acc = with_step(acc, rounding("bf16", "stochastic", seed=11))
    arrays = operands(11)
    assert_folded(acc, arrays, *on_numpy(acc, *arrays, steps=acc.order is not Order.EXACT))
    with pytest.raises(ValueError, match="random bits of its own"):
        accumulate(numpy_ops(), acc, *arrays, steps=[])


ULP = 2.0**-23
# (numbers, their factors): sums whose last bit lies more than 53 below the first
BEYOND = {
    "2^-24 + 2^-60, both factors of 24 bits": (column(1.0, (1 + 2.0**-12) * ULP / 2), column(1.0, 1 - 2.0**-12 + 2.0**-24)),
    "2^-24 - 2^-70, both factors of 24 bits": (column(1 + ULP, (1 + ULP) * ULP / 2), column(1.0, 1 - ULP)),
    "2^-24 + 2^-54, a factor of 8 bits": (column(1.0, 5237765 * 2.0**-54), column(1.0, 205.0)),  # 5237765 x 205 = 2^30 + 1
    "1 - 2^-60": (column(1.0, -(2.0**-60)), column(1.0, 1.0)),
    "1 + 2^-60": (column(1.0, 2.0**-60), column(1.0, 1.0)),
    "2^-149 + 2^-220": (column(2.0**-149, 2.0**-100), column(1.0, 2.0**-120)),
}
BEYOND_STEPS = tuple(rounding(f, m) for f in ("fp32", "bf16") for m in RoundingMode if m is not RoundingMode.STOCHASTIC)


def beyond() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All of them and their negatives in the diagonal, other sums beside it."""
    a, b = (np.hstack([pair[side] for pair in BEYOND.values()]) for side in (0, 1))
    return np.hstack([a, -a]), np.hstack([b, b]), np.zeros((2 * len(BEYOND), 2 * len(BEYOND)))


@pytest.mark.parametrize("r", BEYOND_STEPS, ids=str)
def test_a_step_sees_what_binary64_would_lose(r: Rounding) -> None:
    """One rounding of the exact sum, as a fused multiply-add; by way of binary64 each sum of the table is another number in some mode."""
    for acc in FOLDS[:3]:
        assert_folded(with_step(acc, r), beyond(), on_numpy(with_step(acc, r), *beyond())[0])


@pytest.mark.parametrize("r", [BINARY32, rounding("bf16"), rounding("fp32", "toward-zero")], ids=str)
def test_under_xla_a_step_sees_it_too(r: Rounding) -> None:
    """The error of a sum, an addition less a subtraction of the same, which a compiler may take for 0."""
    acc = with_step(FOLDS[0], r)
    assert_folded(acc, beyond(), on_xla(acc, *beyond())[0])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "e4m3fn"])
def test_operands_of_other_formats(dtype: str) -> None:
    """Products of 24-bit numbers are exact in binary64 too."""
    for acc in (*FOLDS, Accumulator(order=Order.EXACT)):
        arrays = operands(7, dtype)
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


def test_overflow_and_specials_spread() -> None:
    """A step that overflows stays so; infinities and NaN of operands reach the sum; -0 + 0 is +0."""
    a = np.array([[300.0, math.inf, math.nan, -1.0], [300.0, 1.0, 1.0, 1.0]])
    b, init = np.array([[300.0], [1.0]]), np.array([[0.0], [0.0], [0.0], [-0.0]])
    for acc in FOLDS:
        for r in (rounding("fp16"), rounding("fp32")):
            got = on_numpy(with_step(acc, r), a, b, init)[0].reshape(-1)
            assert got[0] == (math.inf if r.format.name == "fp16" else 90300.0), acc
            assert got[1] == math.inf
            assert math.isnan(got[2])
    zero = on_numpy(FOLDS[0], np.array([[-0.0]]), np.array([[1.0]]), np.array([[0.0]]))[0]
    assert math.copysign(1, zero[0, 0]) == 1.0


def test_identity_step_is_binary64() -> None:
    """A binary64 step adds in binary64, product and sum rounded each."""
    rng = np.random.default_rng(1)
    a, b, init = rng.normal(size=(9, T)), rng.normal(size=(9, N)), rng.normal(size=(T, N))
    want = init
    for x, y in zip(a, b, strict=True):
        want = want + x[:, None] * y[None, :]
    assert np.array_equal(on_numpy(Accumulator(step=BINARY64), a, b, init)[0], want)


# ------------------------------------------------------------------------------------- exact


EXACT_CASES = {
    "cancellation to one bit": (column(2.0**100, -(2.0**100), 2.0**-100), column(1.0, 1.0, 1.0)),
    "cancellation of everything": (column(3.0, -3.0, 2.0**-60, -(2.0**-60)), column(1.0, 1.0, 1.0, 1.0)),
    "the largest products": (column(*[float.fromhex("0x1.fffffep127")] * 4), column(*[float.fromhex("0x1.fffffep127")] * 2, -1.0, 1.0)),
    "the smallest products": (column(2.0**-149, 2.0**-149, 3 * 2.0**-149), column(2.0**-149, 2.0**-149, -(2.0**-149))),
    "all exponents": (column(2.0**127, -(2.0**-149), 1.0, 2.0**-149), column(2.0**-126, 2.0**-149, 2.0**-149, 1.0)),
    "a tie for bf16": (column(1.0, 2.0**-8), column(1.0, 1.0)),
    "above a tie by 2^-298": (column(1.0, 2.0**-8, 2.0**-149), column(1.0, 1.0, 2.0**-149)),
    "below a tie by 2^-298": (column(1.0, 2.0**-8, -(2.0**-149)), column(1.0, 1.0, 2.0**-149)),
    "above a tie for fp32": (column(1.0, 2.0**-24, 2.0**-120), column(1.0, 1.0, 2.0**-120)),
    "below a tie for fp32": (column(1.0, 2.0**-24, -(2.0**-120)), column(1.0, 1.0, 2.0**-120)),
    "a negative tie and a residue": (column(-1.0, -(2.0**-24), 2.0**-140), column(1.0, 1.0, 2.0**-140)),
    "results subnormal in binary32": (column(2.0**-70, 3 * 2.0**-75, 2.0**-149), column(2.0**-70, 2.0**-75, 2.0**-149)),
    "carries through many words": (column(*[float.fromhex("0x1.fffffep0")] * 9), column(*[2.0**e for e in range(-120, 96, 24)])),
    "one product": (column(float.fromhex("0x1.abcdeep3")), column(float.fromhex("-0x1.fedcbap-9"))),
}
EXACT_STEPS = tuple(rounding(f, m) for f in ("fp32", "bf16", "fp16", "e4m3fn") for m in RoundingMode if m is not RoundingMode.STOCHASTIC)


@pytest.mark.parametrize("name", EXACT_CASES)
def test_exact_sums_round_once(name: str) -> None:
    """Every mode and format, both signs."""
    a, b = EXACT_CASES[name]
    for r, sign, start in product(EXACT_STEPS, (1.0, -1.0), (0.0, 2.0**-30)):
        acc, arrays = Accumulator(order=Order.EXACT, step=r), (sign * a, b, np.array([[start]]))
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_residue_decides_a_tie_at_every_alignment(name: str) -> None:
    """The sum is kept in words of 32 bits: a tie at each of 40 places, a residue of either sign near and far below it."""
    acc = Accumulator(order=Order.EXACT, step=rounding(name))
    half = 2.0**-acc.step.format.precision
    for place, residue in product(range(-20, 20), (2.0**-26, 2.0**-33, 2.0**-45, 2.0**-120, 0.0)):
        a = column(1.0, half, -residue)
        arrays = (
            np.hstack([a, a * np.array([[1.0], [1.0], [-1.0]]), -a]),
            column(2.0**place, 2.0**place, half * 2.0**place),
            np.zeros((3, 1)),
        )
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_exact_sums_of_random_numbers(name: str) -> None:
    """Exponents over all of binary32, with cancelling partners."""
    rng = np.random.default_rng(8)
    acc = Accumulator(order=Order.EXACT, step=rounding(name))
    for spread in (2, 20, 120):
        size = rng.normal(size=(12, 4)) * 2.0 ** rng.integers(-spread, spread + 1, (12, 4))
        a = size.astype(np.float32).astype(np.float64)
        a = np.concatenate([a, -a[rng.permutation(12)]])
        b = np.ones((24, 3)) * 2.0 ** rng.integers(-spread // 8 - 1, 1, 3)
        b[0] = 1.5
        arrays = (a, b, np.zeros((4, 3)))
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


def test_exact_does_not_depend_on_the_order() -> None:
    """The law of the exact sum: any permutation of the products gives the same bits."""
    rng = np.random.default_rng(9)
    a, b, init = operands(50, "fp32")
    acc = Accumulator(order=Order.EXACT)
    total = on_numpy(acc, a, b, init)[0]
    for _ in range(5):
        p = rng.permutation(50)
        assert np.array_equal(on_numpy(acc, a[p], b[p], init)[0], total)


# ------------------------------------------------------------------------------------- engines


XLA_CASES = (
    *(with_step(acc, BINARY32) for acc in FOLDS[:3]),
    with_step(FOLDS[0], rounding("bf16")),
    with_step(FOLDS[0], rounding("e4m3fn", "toward-zero")),
    with_step(FOLDS[2], rounding("fp16", "toward-positive")),
    with_step(FOLDS[0], rounding("bf16", "stochastic", seed=3)),
    with_step(FOLDS[1], rounding("bf16", "stochastic", seed=3)),
    with_step(FOLDS[2], rounding("fp16", "stochastic", seed=3)),
    Accumulator(order=Order.EXACT),
    Accumulator(order=Order.EXACT, step=rounding("bf16", "to-odd")),
)


@pytest.mark.parametrize("acc", XLA_CASES, ids=str)
def test_engines_agree_in_every_bit(acc: Accumulator) -> None:
    """Outputs and, where they are kept, all additions."""
    keep = acc.order is not Order.EXACT
    arrays = operands(21, "fp32", t=6, n=5)
    total, seen = on_xla(acc, *arrays, steps=keep)
    want, kept = on_numpy(acc, *arrays, steps=keep)
    assert np.array_equal(total.view(np.int64), want.view(np.int64))
    for ours, theirs in zip(kept or (), seen or (), strict=True):
        assert all(np.array_equal(x.view(np.int64), y.view(np.int64)) for x, y in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", EXACT_CASES)
def test_exact_sums_agree_between_engines(name: str) -> None:
    """Padded with zeros to one K, so that it compiles once."""
    a, b = (np.concatenate([v, np.zeros((9 - len(v), 1))]) for v in EXACT_CASES[name])
    init = np.zeros((1, 1))
    with jax.enable_x64(True):
        total = np.asarray(exact_on_xla()(a, b, init))
    assert np.array_equal(total.view(np.int64), on_numpy(Accumulator(order=Order.EXACT), a, b, init)[0].view(np.int64))


@cache
def exact_on_xla() -> Any:
    """One compiled exact sum."""
    acc = Accumulator(order=Order.EXACT)
    return jax.jit(lambda a, b, init: accumulate(xla_ops(opaque_zero(a)), acc, a, b, init))


@pytest.mark.parametrize("run", [on_numpy, on_xla])
def test_native_is_close(run: Callable[..., Any]) -> None:
    """float32 arithmetic in some order: K epsilons at most."""
    a, b, init = operands(64, "fp32", t=8, n=8)
    total = run(Accumulator(order=Order.NATIVE), a, b, init)[0]
    bound = 64 * 2.0**-24 * (np.abs(a).T @ np.abs(b) + np.abs(init))
    assert (np.abs(total - (a.T @ b + init)) <= bound).all()


# ------------------------------------------------------------------------------------- errors


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="chunk=0: a chunk holds at least one product"):
        Accumulator(chunk=0)
    with pytest.raises(ValueError, match="step=fp64: the exact sum rounds to 29 bits"):
        Accumulator(order=Order.EXACT, step=BINARY64)
    kept = Alignment(bits=25, zero=-133, operand=format_named("bf16"))
    for wrong in ({"alignment": kept}, {"order": Order.ALIGNED}):
        with pytest.raises(ValueError, match="goes with order=aligned"):
            Accumulator(**wrong)
    with pytest.raises(ValueError, match="stochastic: an aligned sum has no random bits"):
        Accumulator(order=Order.ALIGNED, alignment=kept, step=rounding("fp32", "stochastic"))
    arrays = operands(3)
    for order in Order:
        if order not in (Order.NATIVE, Order.ALIGNED):
            with pytest.raises(ValueError, match="stochastic"):
                accumulate(numpy_ops(), Accumulator(order=order, step=rounding("bf16", "stochastic")), *arrays, steps=[])


def test_names() -> None:
    assert str(Accumulator()) == "ascending fp32"
    assert str(Accumulator(order=Order.CHUNKED, chunk=8, step=rounding("bf16", "toward-zero"))) == "chunked[8] bf16:toward-zero"
    assert str(Accumulator(order=Order.NATIVE)) == "native"
