"""Exact sums, rounded once, against fractions, on both engines."""

from fractions import Fraction
from functools import cache
from itertools import product
from math import inf, nan
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.roundings.judge import judge
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate
from tests.emu.sums.folds import assert_folded, column, on_numpy, operands

EXACT_CASES = {
    "cancellation to one bit": (column(2.0**100, -(2.0**100), 2.0**-100), column(1.0, 1.0, 1.0)),
    "cancellation of everything": (
        column(3.0, -3.0, 2.0**-60, -(2.0**-60)),
        column(1.0, 1.0, 1.0, 1.0),
    ),
    "the largest products": (
        column(*[float.fromhex("0x1.fffffep127")] * 4),
        column(*[float.fromhex("0x1.fffffep127")] * 2, -1.0, 1.0),
    ),
    "the smallest products": (
        column(2.0**-149, 2.0**-149, 3 * 2.0**-149),
        column(2.0**-149, 2.0**-149, -(2.0**-149)),
    ),
    "all exponents": (
        column(2.0**127, -(2.0**-149), 1.0, 2.0**-149),
        column(2.0**-126, 2.0**-149, 2.0**-149, 1.0),
    ),
    "a tie for bf16": (column(1.0, 2.0**-8), column(1.0, 1.0)),
    "above a tie by 2^-298": (column(1.0, 2.0**-8, 2.0**-149), column(1.0, 1.0, 2.0**-149)),
    "below a tie by 2^-298": (column(1.0, 2.0**-8, -(2.0**-149)), column(1.0, 1.0, 2.0**-149)),
    "above a tie for fp32": (column(1.0, 2.0**-24, 2.0**-120), column(1.0, 1.0, 2.0**-120)),
    "below a tie for fp32": (column(1.0, 2.0**-24, -(2.0**-120)), column(1.0, 1.0, 2.0**-120)),
    "a negative tie and a residue": (
        column(-1.0, -(2.0**-24), 2.0**-140),
        column(1.0, 1.0, 2.0**-140),
    ),
    "results subnormal in binary32": (
        column(2.0**-70, 3 * 2.0**-75, 2.0**-149),
        column(2.0**-70, 2.0**-75, 2.0**-149),
    ),
    "carries through many words": (
        column(*[float.fromhex("0x1.fffffep0")] * 9),
        column(*[2.0**e for e in range(-120, 96, 24)]),
    ),
    "one product": (column(float.fromhex("0x1.abcdeep3")), column(float.fromhex("-0x1.fedcbap-9"))),
}
EXACT_STEPS = tuple(
    rounding(f, m)
    for f in ("fp32", "bf16", "fp16", "e4m3fn")
    for m in RoundingMode
    if m is not RoundingMode.STOCHASTIC
)


@pytest.mark.parametrize("name", EXACT_CASES)
def test_exact_sums_round_once(name: str) -> None:
    """Every mode and format, both signs."""
    a, b = EXACT_CASES[name]
    for r, sign, start in product(EXACT_STEPS, (1.0, -1.0), (0.0, 2.0**-30)):
        acc, arrays = Accumulator(order=Order.EXACT, step=r), (sign * a, b, np.array([[start]]))
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_residue_decides_a_tie_at_every_alignment(name: str) -> None:
    """The sum is kept in words of 32 bits: a tie at each of 40 places, a residue of either sign
    near and far below it.
    """
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


BEYOND_BINARY32 = {  # a, b, init
    "large and larger": ([2.0**400, -(2.0**399)], [1.0, 1.0], 0.0),
    "tiny": ([1e-100], [1.0], 0.0),
    "a large first term": ([1.0], [1.0], 1e300),
    "cancellation across binary64": ([2.0**1000, 2.0**-1000, -(2.0**1000)], [1.0, 1.0, 1.0], 0.0),
    "a tie that 2^-1074 decides": ([1.0, 2.0**-21, 2.0**-1074], [1.0, 1.0, 1.0], 0.0),
    "subnormal throughout": ([2.0**-1040, 3 * 2.0**-1074], [1.0, 1.0], 2.0**-1073),
    "largest numbers": ([1.7976931348623157e308, 1.0], [1.0, -1.0], -(2.0**970)),
    "products": ([2.0**300, 2.0**-400 + 2.0**-425], [2.0**300, 2.0**-400 + 2.0**-425], -(2.0**600)),
}
DRAWN = RoundingMode.STOCHASTIC
WIDE_STEPS = tuple(
    rounding(f, m) for f in ("e11m20", "e11m3", "fp32") for m in RoundingMode if m is not DRAWN
)


@pytest.mark.parametrize("name", BEYOND_BINARY32)
def test_exact_sums_of_any_binary64_numbers(name: str) -> None:
    """2^400 - 2^399 was 0: the words ended at 2^288 and 2^-320."""
    a, b, start = BEYOND_BINARY32[name]
    for r, sign in product(WIDE_STEPS, (1.0, -1.0)):
        acc = Accumulator(order=Order.EXACT, step=r)
        arrays = sign * column(*a), column(*b), np.array([[sign * start]])
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


@pytest.mark.parametrize("r", WIDE_STEPS, ids=str)
def test_an_exact_sum_beyond_binary64_overflows_as_its_mode_says(r: Rounding) -> None:
    """An infinity that toward zero should have been the largest number."""
    acc, top = Accumulator(order=Order.EXACT, step=r), np.finfo(np.float64).max
    arrays = column(2.0**1023, 2.0**1023, -1.0), column(1.0, 1.5, 1.0), np.zeros((1, 1))
    assert float(on_numpy(acc, *arrays)[0][0, 0]) == judge(top, r)
    assert float(on_numpy(acc, -arrays[0], *arrays[1:])[0][0, 0]) == judge(-top, r)


@pytest.mark.parametrize("on", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_infinities_are_those_of_fsum(on: Any) -> None:
    """Any infinity gave NaN."""
    exact = Accumulator(order=Order.EXACT)
    cases = {
        (inf, 1, 0): inf,
        (1, -inf, 2): -inf,
        (inf, inf, 0): inf,
        (inf, -inf, 1): nan,
        (nan, inf, 0): nan,
    }
    for x, want in cases.items():
        for dtype in (np.float32, np.float64):
            with jax.enable_x64(True):
                found = float(emu.sum(on(np.array([x], dtype)), exact)[0])
            np.testing.assert_equal(found, want)
    zero, one, infinite = (on(np.float32([[v]])) for v in (0.0, 1.0, inf))
    assert np.isnan(float(emu.dot(zero, infinite, exact)[0, 0]))
    assert float(emu.dot(one, one, exact, init=-infinite)[0, 0]) == -inf


def test_the_shorter_words_of_binary32_numbers_give_the_same_sum() -> None:
    """A domain cut too short: `emu.dot` takes the short one for float32 arrays."""
    top, low = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    x = np.array([[top, -top, low, 1.0, 2.0**-24, low]], np.float32)
    y = np.array([[top, top, low, 1.0, 1.0, low]], np.float32).T
    total = sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x[0], y[:, 0], strict=True))
    for r in (rounding("fp32"), rounding("bf16"), rounding("e11m20")):
        acc = Accumulator(order=Order.EXACT, step=r)
        short, whole = emu.dot(x, y, acc), emu.dot(x.astype(np.float64), y, acc)
        assert float(short[0, 0]) == float(whole[0, 0]) == judge(total, r)  # type: ignore[arg-type]


def test_exact_does_not_depend_on_the_order() -> None:
    """The law of the exact sum: any permutation of the products gives the same bits."""
    rng = np.random.default_rng(9)
    a, b, init = operands(50, "fp32")
    acc = Accumulator(order=Order.EXACT)
    total = on_numpy(acc, a, b, init)[0]
    for _ in range(5):
        p = rng.permutation(50)
        assert np.array_equal(on_numpy(acc, a[p], b[p], init)[0], total)


@pytest.mark.parametrize("name", EXACT_CASES)
def test_exact_sums_agree_between_engines(name: str) -> None:
    """Padded with zeros to one K, so that it compiles once."""
    a, b = (np.concatenate([v, np.zeros((9 - len(v), 1))]) for v in EXACT_CASES[name])
    init = np.zeros((1, 1))
    with jax.enable_x64(True):
        total = np.asarray(exact_on_xla()(a, b, init))
    assert np.array_equal(
        total.view(np.int64), on_numpy(Accumulator(order=Order.EXACT), a, b, init)[0].view(np.int64)
    )


@cache
def exact_on_xla() -> Any:
    """One compiled exact sum."""
    acc = Accumulator(order=Order.EXACT)
    return jax.jit(lambda a, b, init: accumulate(xla_ops(opaque_zero(a)), acc, a, b, init))
