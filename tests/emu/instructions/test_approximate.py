"""ex2, lg2, rcp, rsqrt, tanh and expf: bits of a GPU, special numbers, bounds, both engines."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import jax
import mpmath
import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.instructions.approximate import ex2, expf, lg2, rcp, rsqrt, tanh_approx
from tests.checks.gpu_kernels import sampled_words
from tests.checks.gpu_operations import magnitudes

INF, NAN, LEAST = math.inf, math.nan, 2.0**-126
# SHA-256 of the bits of the results of all numbers of [1, 2) on an H200, of tanh on an H100
OF_A_BINADE = {
    ex2: "cce5df10202dbfcde720ca547d147edb3e2a406a5fed189323f419177a72a1a5",
    rcp: "c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55",
    lg2: "7fd9be9a924e40a0ee18ba20e7f5158135112947597c8dd86131d3d4d8f9dbfa",
    tanh_approx: "412dcb386a8e87e08473e44bfa0d748e43096699ef45d1eddad4af0c3bbac577",
}
OF_A_SAMPLE = {  # of sampled_words()
    ex2: "98581c91dab6f4a09cb165bb813f54a6fb89f57876021e55da14d1604fe94fc2",
    rcp: "932effb1a01ad8568096beacc90193b4006197f529d4bef14a368becd308a978",
    tanh_approx: "9da4419e0d166f7fda5f64a029d263cc532243928b0b1ac20f3d13031dc0976b",
}
NAMES = {"ids": lambda f: f.__name__}
functions = pytest.mark.parametrize("function", [ex2, expf, lg2, rcp, rsqrt, tanh_approx], **NAMES)


def results(function: Callable[..., Any], words: np.ndarray) -> np.ndarray:
    """The bits of the results for numbers of these bits, in pieces; each is a binary32 number."""
    found = []
    for part in np.array_split(words, max(1, words.size >> 18)):
        with np.errstate(all="ignore"):
            y = function(numpy_ops(), part.view(np.float32).astype(np.float64))
            narrow = y.astype(np.float32)
        assert np.array_equal(narrow.astype(np.float64), y, equal_nan=True)
        found.append(np.where(np.isnan(narrow), np.uint32(0x7FFFFFFF), narrow.view(np.uint32)))
    return np.concatenate(found)


def digest(words: np.ndarray) -> str:
    return hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()


def of(function: Callable[..., Any], *x: float) -> list[float]:
    with np.errstate(all="ignore"):
        return function(numpy_ops(), np.array(x)).tolist()


def assert_same(got: list[float], want: list[float]) -> None:
    """Equal in every bit but those of NaN."""
    assert list(map(repr, got)) == list(map(repr, want))


def some() -> np.ndarray:
    """Numbers of every sign and exponent, few significands of each, and their ends."""
    words = sampled_words().reshape(512, -1)[:, np.r_[0:2, 2:8190:256, 8190:8192]].reshape(-1)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return words.view(np.float32).astype(np.float64)


@pytest.mark.parametrize("function", OF_A_BINADE, **NAMES)
def test_a_binade_is_what_the_gpu_gives(function: Callable[..., Any]) -> None:
    """A coefficient, a bias or a cut partial product that is another one than the GPU's."""
    binade = np.arange(1 << 23, dtype=np.uint32) | np.uint32(0x3F800000)
    assert digest(results(function, binade)) == OF_A_BINADE[function]


@pytest.mark.parametrize("function", OF_A_SAMPLE, **NAMES)
def test_numbers_of_every_exponent_are_what_the_gpu_gives(function: Callable[..., Any]) -> None:
    """A subnormal that is not flushed, a sign that is lost, an argument of large size cut
    wrongly.
    """
    assert digest(results(function, sampled_words())) == OF_A_SAMPLE[function]


def test_positive_numbers_are_what_rsqrt_gives() -> None:
    """A parity taken the other way round; a subnormal that is flushed. The digest is that of
    torch.rsqrt on an H100 (torch 2.11.0, CUDA 13.0).
    """
    found = digest(results(rsqrt, magnitudes(32, 100_000).view(np.uint32)))
    assert found == "2632741e8902e97f6edd4fb8e1ffb821affdd0eb9cdd6d3d4012ef38841cdf85"


@functions
def test_under_xla_every_bit_is_the_same(function: Callable[..., Any]) -> None:
    """A shift, a table or a comparison with NaN that a compiler takes otherwise."""
    x = some()
    with jax.enable_x64(True):
        run = jax.jit(lambda x: function(xla_ops(opaque_zero(x)), x))
        got = np.asarray(run(x))
    with np.errstate(all="ignore"):
        want = function(numpy_ops(), x)
    nan = np.isnan(want)
    assert np.array_equal(nan, np.isnan(got))
    assert np.array_equal(got.view(np.int64)[~nan], want.view(np.int64)[~nan])


def test_special_numbers_of_ex2() -> None:
    """NaN of an infinity, a result below 2^-126 that is kept, a whole power that is not exact."""
    x = INF, -INF, NAN, 0.0, -0.0, 2.0**-149, -(2.0**-149), 256.0, -256.0, 128.0, 1e38, -1e38
    assert_same(of(ex2, *x), [INF, 0.0, NAN, 1.0, 1.0, 1.0, 1.0, INF, 0.0, INF, INF, 0.0])
    assert_same(of(ex2, -126.0, -127.0, -126.0 - 2.0**-17, -149.0), [LEAST, 0.0, 0.0, 0.0])
    assert of(ex2, -126.5, -126.25, -126.75) == [0.0] * 3
    assert LEAST < of(ex2, -126.0 + 2.0**-10)[0] < LEAST * 1.01
    assert math.isfinite(of(ex2, 128.0 - 2.0**-16)[0])
    whole = np.arange(-126.0, 128.0)
    assert of(ex2, *whole) == np.exp2(whole).tolist()


def test_special_numbers_of_lg2() -> None:
    """-inf of a subnormal's own logarithm, NaN of -0; of negative powers of two the H200 falls
    short (0xc2fbffff at 2^-126).
    """
    x = INF, -INF, NAN, 0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, -(2.0**-126), -1.0
    assert_same(of(lg2, *x), [INF, NAN, NAN, -INF, -INF, -INF, -INF, -125.99999237060547, NAN, NAN])
    exponents = np.arange(-126, 128).astype(np.float32)
    short = np.where(exponents < 0, np.nextafter(exponents, np.float32(0)), exponents)
    short[exponents == -1] = -1 + 2.0**-23
    assert of(lg2, *np.exp2(exponents)) == short.tolist()
    assert_same(of(lg2, 1.0), [0.0])


def test_special_numbers_of_rcp() -> None:
    """The sign of an infinite or zero result, a subnormal argument or result that is not
    flushed.
    """
    x = INF, -INF, NAN, 0.0, -0.0, 2.0**-127, -(2.0**-149), 2.0**126, 2.0**127, -(2.0**127)
    assert_same(of(rcp, *x), [0.0, -0.0, NAN, INF, -INF, INF, -INF, LEAST, 0.0, -0.0])
    exponents = np.arange(-126.0, 127.0)
    assert of(rcp, *np.exp2(exponents)) == np.exp2(-exponents).tolist()


def test_special_numbers_of_rsqrt() -> None:
    """An infinity of the wrong sign, a root of a negative number, a power of 4 that falls short."""
    x = INF, -INF, NAN, 0.0, -0.0, -1.0, -(2.0**-149)
    assert_same(of(rsqrt, *x), [0.0, NAN, NAN, INF, -INF, NAN, NAN])
    exponents = np.arange(-63.0, 64.0)
    assert of(rsqrt, *np.exp2(2 * exponents)) == np.exp2(-exponents).tolist()


def test_special_numbers_of_expf() -> None:
    """A maximum that takes NaN for a number; the exponent of 2^n leaving its range."""
    x = INF, -INF, NAN, 0.0, -0.0, 2.0**-149, -(2.0**-149), 88.75, 1e38, -1e38, -110.0
    assert_same(of(expf, *x), [INF, 0.0, NAN, 1.0, 1.0, 1.0, 1.0, INF, INF, 0.0, 0.0])
    assert 0.0 < of(expf, -100.0)[0] < LEAST  # subnormal: the product with 2^n is no flushed one


def test_special_numbers_of_tanh() -> None:
    """A subnormal that is flushed, the sign of zero, a result above 1 or of NaN."""
    x = 0.0, -0.0, 2.0**-149, -(2.0**-127), 2.0**-9, 8.0, -8.0, 3e38, INF, -INF, NAN
    y = 0.0, -0.0, 2.0**-149, -(2.0**-127), 2.0**-9, 1.0, -1.0, 1.0, 1.0, -1.0, NAN
    assert_same(of(tanh_approx, *x), list(y))
    assert 1.0 - 2.0**-20 < of(tanh_approx, 8.0 - 2.0**-21)[0] < 1.0


def numbers(low: float, high: float, count: int) -> np.ndarray:
    return np.random.default_rng(8).uniform(low, high, count).astype(np.float32).astype(np.float64)


def in_ulps(got: list[float], x: np.ndarray, exact: Callable[[Any], Any]) -> float:
    """The largest distance from the function, in units of the last place of binary32."""
    with mpmath.workprec(100):
        want = [exact(mpmath.mpf(v)) for v in x.tolist()]
        sizes = [math.ldexp(1.0, max(math.frexp(float(w))[1], -125) - 24) for w in want]
        return max(float(abs(g - w) / u) for g, w, u in zip(got, want, sizes, strict=True))


@pytest.mark.parametrize(
    ("function", "exact", "x", "most"),
    [
        (ex2, lambda x: 2**x, numbers(-126.0, 128.0, 2000), 2.0),
        (rcp, lambda x: 1 / x, np.exp2(numbers(-126.0, 125.9, 2000)), 1.0),
        (lg2, lambda x: mpmath.log(x, 2), numbers(2.0, 1e6, 2000), 2.0),
        (expf, mpmath.exp, numbers(-87.0, 88.7, 2000), 2.0),
        (expf, mpmath.exp, numbers(-1.0, 1.0, 2000), 2.0),
        (expf, mpmath.exp, numbers(-103.0, -87.4, 500), 1.0),
        (tanh_approx, mpmath.tanh, np.exp2(numbers(-10.0, 3.5, 2000)), 2.0**8),
    ],
    ids=["ex2", "rcp", "lg2", "expf", "expf near 0", "expf subnormal", "tanh"],
)
def test_errors_are_within_the_documented_bounds(
    function: Callable[..., Any], exact: Callable[[Any], Any], x: np.ndarray, most: float
) -> None:
    """An interval's coefficients exchanged with another's, log2 e rounded once too often, a power
    of two too many.
    """
    x = x.astype(np.float32).astype(np.float64)
    assert in_ulps(of(function, *x), x, exact) <= most


def test_lg2_near_one_is_within_its_absolute_bound() -> None:
    """A cut at 24 bits of the wrong number: between 1/2 and 2 the error is absolute, 2^-22 [PTX
    ISA, lg2].
    """
    x = numbers(0.5, 2.0, 20000)
    assert np.abs(np.array(of(lg2, *x)) - np.log2(x)).max() <= 2.0**-22


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3, 1), (1, 3)])
def test_small_arrays_have_the_bits_of_large_ones(shape):
    """A warning (an error in this suite) of NumPy, or other bits, where an array has one number."""
    x = np.linspace(-3.0, 1.0, 3)[: math.prod(shape)].reshape(shape)
    x = x.astype(np.float32).astype(np.float64)
    want = [expf(numpy_ops(), np.array([y, 2.0])).tolist()[0] for y in x.reshape(-1)]
    assert_same(expf(numpy_ops(), x).reshape(-1).tolist(), want)
