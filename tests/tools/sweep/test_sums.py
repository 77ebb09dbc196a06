"""Sums behind METRICS: near the exact sum, and the same bits from numpy and xla."""

import math

import numpy as np
import pytest

from roundscope.tools.sweep.measuring import on_device
from roundscope.tools.sweep.measuring import sums as on_host
from roundscope.tools.sweep.measuring.sums import total

SIZES = [1, 2, 3, 1000, 65536 + 1]


@pytest.fixture
def x64():
    import jax

    with jax.enable_x64(True):
        yield jax


def awkward(size):
    """Numbers that cancel, over 80 binades."""
    random = np.random.default_rng(size)
    return random.standard_normal((3, size)) * 2.0 ** random.integers(-40, 40, (3, size))


@pytest.mark.parametrize("size", SIZES)
def test_sum_is_near_the_exact_one(size):
    """Catches an entry lost or counted twice where zeros are added, and an error beyond that of a
    tree.
    """
    x = awkward(size)
    for row, found in zip(x, total(np, x), strict=True):
        assert abs(found - math.fsum(row)) <= math.ceil(math.log2(size)) * 2.0**-53 * math.fsum(
            np.abs(row)
        )
    assert np.array_equal(total(np, np.ones((2, size))), [size, size])


def test_order_of_a_sum():
    """Catches another order: entries half the length apart are added first, and zeros are at the
    end.
    """
    big = 1e100
    assert total(
        np, np.array([[1.0, big, 1.0, -big], [big, 1.0, -big, 1.0], [big, -big, 1.0, 1.0]])
    ).tolist() == [2.0, 2.0, 0.0]
    assert total(np, np.array([[big, 1.0, -big], [big, -big, 1.0]])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_numpy_and_xla_are_equal(size, x64):
    """Catches a compiler that reorders additions."""
    x = awkward(size)
    assert np.array_equal(total(np, x), x64.jit(lambda x: total(x64.numpy, x))(x))


def results(shape, seed):
    """mine, golden and unfused of cells, with entries that are not finite: one, a row, a cell."""
    cells, t, n, h = shape
    random = np.random.default_rng(seed)
    sizes = {
        "out": shape,
        "lse": shape[:3],
        "dq": shape,
        "dk": (cells, t + 1, n, h),
        "dv": (cells, t + 1, n, h),
        "delta": shape[:3],
    }
    golden = {
        name: random.standard_normal(size) * 2.0 ** random.integers(-9, 9, size)
        for name, size in sizes.items()
    }
    golden["out"][:, 0] = 0.0
    mine, unfused = (
        {name: x + 1e-3 * random.standard_normal(x.shape) for name, x in golden.items()}
        for _ in range(2)
    )
    golden["lse"][0, 0], mine["lse"][0, 0] = -math.inf, -math.inf
    mine["out"][0, 0, 0, 0], mine["out"][0, -1] = math.nan, math.inf
    # as they should be: no deviation, and no size of golden
    golden["dv"][0, 0, 0, 0] = mine["dv"][0, 0, 0, 0] = math.nan
    golden["dv"][-1, 1, 0, 0] = mine["dv"][-1, 1, 0, 0] = math.inf
    mine["delta"][-1], mine["dk"][0, 0, 0, 0], unfused["out"][-1, 0] = math.nan, -math.inf, math.inf
    return mine, golden, {"out": unfused["out"]}


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 1, 5), (3, 37, 3, 19), (2, 64, 2, 16)])
def test_numpy_and_xla_give_the_same_bits(shape):
    """Catches a product fused into a sum, a quotient turned into a product, and a count or maximum
    over something else.
    """
    arrays, emin = results(shape, seed=sum(shape)), np.array([-126, -14, -6][: shape[0]])
    plain, compiled = on_host.sums(*arrays, emin), on_device.sums(*arrays, emin)
    assert (
        set(plain)
        == set(compiled)
        == {"out", "unfused", "between", "lse", "dq", "dk", "dv", "delta"}
    )
    for name, sums in plain.items():
        assert set(sums) == set(compiled[name])
        for part, x in sums.items():
            heads = shape[2:3] if part in ("along", "length", "off") else ()
            assert x.shape == compiled[name][part].shape == (*shape[:1], *heads)
            assert np.array_equal(x, compiled[name][part], equal_nan=True), (name, part)


@pytest.mark.parametrize("size", [5, 8])
def test_chosen_entries(size):
    """Catches an entry of another batch, and a padding that is not the last entry."""
    a, b, c = (
        {"out": np.arange(n)[:, None] + base, "lse": np.arange(n) + base}
        for n, base in ((4, 0.0), (1, 10.0), (4, 20.0))
    )
    found = [(a, 3), (c, 1), (b, 0), (a, 0), (c, 3)]
    wanted = [3.0, 21.0, 10.0, 0.0, 23.0]
    assert (
        on_host.chosen(found, 5)["lse"].tolist()
        == wanted
        == on_host.chosen(found, 5)["out"][:, 0].tolist()
    )
    device = on_device.chosen(found, size)
    assert (
        device["lse"].tolist() == wanted + wanted[-1:] * (size - 5) == device["out"][:, 0].tolist()
    )
