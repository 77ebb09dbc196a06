"""Edges of the public functions: empty arrays, single numbers, overlapping memory, NaN, seeds."""

from collections.abc import Callable
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.roundings.judge import judge

both = pytest.mark.parametrize("on", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
Array = Callable[..., np.ndarray]
ORDERS = [emu.Accumulator(order=o, chunk=2) for o in emu.Order if o is not emu.Order.ALIGNED] + [
    emu.Accumulator.tensor_core("hopper", "bf16")
]


@both
def test_stats_count_what_is_nan_already(on: Array) -> None:
    """JAX arrays lost their NaN: n was 2, nan 0."""
    x = np.array([np.nan, 1.0, 2.505], np.float32)
    y = emu.round_to(x, "bf16")
    found = emu.stats_of(on(x), on(y), "bf16")
    assert (int(found.n), int(found.nan), int(found.inexact)) == (3, 1, 1)
    assert int(emu.round_with_stats(on(x), "bf16")[1].nan) == 1


@both
def test_arrays_of_nothing(on: Array) -> None:
    """JAX: a reduction that has no identity. NumPy: a shape that cannot be guessed."""
    nothing = on(np.zeros((0, 3), np.float32))
    for function in (
        emu.exp,
        lambda x: emu.ulp_of(x, "bf16"),
        lambda x: emu.round_to(x, "bf16"),
        lambda x: emu.error_of(x, "bf16"),
    ):
        assert function(nothing).shape == (0, 3)
    counted = emu.stats_of(nothing, nothing, "bf16").as_dict()
    assert counted == dict.fromkeys(counted, 0) | {"place": -1}


@pytest.mark.parametrize("accumulator", ORDERS, ids=lambda a: a.order)
@both
def test_sums_of_nothing(accumulator: emu.Accumulator, on: Array) -> None:
    """No products: the first term. No rows: none."""
    a, b, init = (on(np.zeros(shape, np.float32)) for shape in ((2, 0), (0, 3), (2, 3)))
    np.testing.assert_array_equal(emu.dot(a, b, accumulator), np.zeros((2, 3)))
    np.testing.assert_array_equal(emu.dot(a, b, accumulator, init + 1), np.ones((2, 3)))
    no_rows, some = on(np.zeros((0, 4), np.float32)), on(np.zeros((4, 3), np.float32))
    assert emu.dot(no_rows, some, accumulator).shape == (0, 3)
    no_terms = emu.sum(on(np.zeros((3, 0), np.float32)), accumulator)
    np.testing.assert_array_equal(no_terms, np.zeros(3))
    assert emu.sum(on(np.zeros((0, 5), np.float32)), accumulator).shape == (0,)


@both
def test_an_axis_that_is_not_there(on: Array) -> None:
    """axis=5 was taken modulo 2; a single number was an IndexError, or had an axis -0."""
    with pytest.raises(ValueError, match="axis=5: the array has 2 axes; give -2 to 1"):
        emu.sum(on(np.ones((2, 3), np.float32)), axis=5)
    for function in (emu.sum, lambda x: emu.round_blocks(x, "mxfp4")):
        with pytest.raises(ValueError, match="a single number has no axis"):
            function(on(np.float32(1.0)))
    assert emu.sum(on(np.ones((2, 3), np.float32)), axis=-2).shape == (3,)


@pytest.mark.parametrize("mode", ["ties-to-even", "toward-zero", "stochastic"])
@pytest.mark.parametrize("shift", [-1, 1, 40000])
def test_out_may_overlap_its_input(mode: str, shift: int) -> None:
    """The first value came out everywhere: a number was read after its place had been written."""
    fresh = np.random.default_rng(1).standard_normal(200_000).astype(np.float32)
    early, late = slice(None, -abs(shift)), slice(abs(shift), None)
    source, target = (early, late) if shift > 0 else (late, early)
    want, counts = emu.round_with_stats(fresh[source], "bf16", mode, seed=3)
    x = fresh.copy()
    emu.round_to(x[source], "bf16", mode, seed=3, out=x[target])
    assert np.array_equal(x[target], want)
    x = fresh.copy()
    counted = emu.round_with_stats(x[source], "bf16", mode, seed=3, out=x[target])[1]
    assert np.array_equal(x[target], want) and counted.as_dict() == counts.as_dict()


def test_statistics_in_place_through_another_view() -> None:
    """`out` that is not x itself but its memory: the numbers before were those after."""
    x = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    want = emu.round_with_stats(x, "bf16")[1]
    assert emu.round_with_stats(x, "bf16", out=x[:])[1].as_dict() == want.as_dict()


@both
def test_error_of_where_it_is_no_binary32_number(on: Array) -> None:
    """A saturated number, and a tiny one taken outward: the exact difference, rounded once."""
    for x, mode in (
        (1e10, None),
        (-1e10, None),
        (465.0, None),
        (1e-10, "toward-positive"),
        (3.3e-5, "away-from-zero"),
    ):
        v = np.float32(x)
        r = emu.rounding("e4m3fn", mode)
        exact = Fraction(judge(float(v), r)) - Fraction(float(v))
        want = judge(exact, emu.BINARY32)  # type: ignore[arg-type]
        assert float(np.asarray(emu.error_of(on(np.array([v])), r))[0]) == want


def test_a_seed_is_a_whole_number() -> None:
    """1.5 was taken for 1."""
    for seed in (1.5, 1.0, "1"):
        with pytest.raises(ValueError, match="a seed is a whole number"):
            emu.rounding("bf16", "stochastic", seed=seed)  # type: ignore[arg-type]
    assert emu.rounding("bf16", seed=np.int64(3)) == emu.rounding("bf16", seed=3)
