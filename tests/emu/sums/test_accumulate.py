"""Sums of products against a fold of fractions, on both engines."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import BINARY32, BINARY64, Rounding, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate
from roundscope.emu.sums.aligned import Alignment
from tests.emu.sums.folds import (
    FOLDS,
    N,
    T,
    assert_folded,
    column,
    on_numpy,
    on_xla,
    operands,
    with_step,
)

STEPS = tuple(
    rounding(f, m)
    for f, m in (
        ("fp32", None),
        ("bf16", None),
        ("fp16", None),
        ("e4m3fn", None),
        ("fp32", "toward-zero"),
        ("bf16", "toward-zero"),
        ("fp16", "toward-positive"),
        ("bf16", "toward-negative"),
        ("e4m3fn", "to-odd"),
        ("bf16", "ties-to-away"),
    )
)


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


@pytest.mark.parametrize(
    "acc", [*FOLDS, Accumulator(order=Order.EXACT)], ids=lambda a: f"{a.order}{a.chunk}"
)
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
    "2^-24 + 2^-60, both factors of 24 bits": (
        column(1.0, (1 + 2.0**-12) * ULP / 2),
        column(1.0, 1 - 2.0**-12 + 2.0**-24),
    ),
    "2^-24 - 2^-70, both factors of 24 bits": (
        column(1 + ULP, (1 + ULP) * ULP / 2),
        column(1.0, 1 - ULP),
    ),
    "2^-24 + 2^-54, a factor of 8 bits": (
        column(1.0, 5237765 * 2.0**-54),
        column(1.0, 205.0),
    ),  # 5237765 x 205 = 2^30 + 1
    "1 - 2^-60": (column(1.0, -(2.0**-60)), column(1.0, 1.0)),
    "1 + 2^-60": (column(1.0, 2.0**-60), column(1.0, 1.0)),
    "2^-149 + 2^-220": (column(2.0**-149, 2.0**-100), column(1.0, 2.0**-120)),
}
BEYOND_STEPS = tuple(
    rounding(f, m)
    for f in ("fp32", "bf16")
    for m in RoundingMode
    if m is not RoundingMode.STOCHASTIC
)


def beyond() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All of them and their negatives in the diagonal, other sums beside it."""
    a, b = (np.hstack([pair[side] for pair in BEYOND.values()]) for side in (0, 1))
    return np.hstack([a, -a]), np.hstack([b, b]), np.zeros((2 * len(BEYOND), 2 * len(BEYOND)))


@pytest.mark.parametrize("r", BEYOND_STEPS, ids=str)
def test_a_step_sees_what_binary64_would_lose(r: Rounding) -> None:
    """One rounding of the exact sum, as a fused multiply-add; by way of binary64 each sum of the
    table is another number in some mode.
    """
    for acc in FOLDS[:3]:
        assert_folded(with_step(acc, r), beyond(), on_numpy(with_step(acc, r), *beyond())[0])


@pytest.mark.parametrize(
    "r", [BINARY32, rounding("bf16"), rounding("fp32", "toward-zero")], ids=str
)
def test_under_xla_a_step_sees_it_too(r: Rounding) -> None:
    """The error of a sum, an addition less a subtraction of the same, which a compiler may take for
    0.
    """
    acc = with_step(FOLDS[0], r)
    assert_folded(acc, beyond(), on_xla(acc, *beyond())[0])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "e4m3fn"])
def test_operands_of_other_formats(dtype: str) -> None:
    """Products of 24-bit numbers are exact in binary64 too."""
    for acc in (*FOLDS, Accumulator(order=Order.EXACT)):
        arrays = operands(7, dtype)
        assert_folded(acc, arrays, on_numpy(acc, *arrays)[0])


def test_overflow_and_specials_spread() -> None:
    """A step that overflows stays so; infinities and NaN of operands reach the sum; -0 + 0 is
    +0.
    """
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
        assert all(
            np.array_equal(x.view(np.int64), y.view(np.int64))
            for x, y in zip(ours, theirs, strict=True)
        )


@pytest.mark.parametrize("run", [on_numpy, on_xla])
def test_native_is_close(run: Callable[..., Any]) -> None:
    """float32 arithmetic in some order: K epsilons at most."""
    a, b, init = operands(64, "fp32", t=8, n=8)
    total = run(Accumulator(order=Order.NATIVE), a, b, init)[0]
    bound = 64 * 2.0**-24 * (np.abs(a).T @ np.abs(b) + np.abs(init))
    assert (np.abs(total - (a.T @ b + init)) <= bound).all()


# ------------------------------------------------------------------------------------- errors


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="chunk=0: must be 1 or more"):
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
                accumulate(
                    numpy_ops(),
                    Accumulator(order=order, step=rounding("bf16", "stochastic")),
                    *arrays,
                    steps=[],
                )


def test_names() -> None:
    assert str(Accumulator()) == "ascending fp32"
    assert (
        str(Accumulator(order=Order.CHUNKED, chunk=8, step=rounding("bf16", "toward-zero")))
        == "chunked[8] bf16:toward-zero"
    )
    assert str(Accumulator(order=Order.NATIVE)) == "native"
