"""logf and log2f of CUDA's library: the steps of its PTX in exact fractions, special numbers,
bounds of error, both engines.
"""

import math
from fractions import Fraction

import jax
import mpmath
import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.instructions.polynomials import log2f, logf
from tests.checks.gpu_kernels import sampled_words

INF, NAN = math.inf, math.nan
# words of the PTX that nvcc 13.0 emits (-arch=sm_90): the polynomial, and the binary32 number that
# multiplies last
OF_LOGF = [
    "BE055027",
    "3E1039F6",
    "BDF8CDCC",
    "3E0F2955",
    "BE2AD8B9",
    "3E4CED0B",
    "BE7FFF22",
    "3EAAAA78",
    "BF000000",
]
OF_LOG2F = [
    "3DC6B27F",
    "BE2C7F30",
    "3E2FCF2A",
    "BE374E43",
    "3E520BF4",
    "BE763C8B",
    "3E93BF99",
    "BEB8AA49",
    "3EF6384A",
    "BF38AA3B",
]
functions = pytest.mark.parametrize("function", [logf, log2f], ids=lambda f: f.__name__)


def single(word: str | int) -> Fraction:
    return Fraction(
        float(np.uint32(int(word, 16) if isinstance(word, str) else word).view(np.float32))
    )


def nearest(x: Fraction) -> Fraction:
    """x rounded to 24 bits, ties to even; no logarithm of a binary32 number comes near its least
    ones.
    """
    if x == 0:
        return x
    exponent = math.frexp(float(x))[1] - 24
    return round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent


def fma(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return nearest(a * b + c)


def by_the_ptx(function, word: int) -> Fraction:
    """The instructions one after the other."""
    begin, words = (0x3F2AAAAB, OF_LOGF) if function is logf else (0x3F3504F3, OF_LOG2F)
    steps, first = word, 0
    if word < 0x00800000:
        steps = int(
            np.float32(np.uint32(word).view(np.float32) * np.float32(2.0**23)).view(np.uint32)
        )
        first = -23
    exponent = (steps - begin) & 0xFF800000
    signed = exponent - (1 << 32) if exponent >= 1 << 31 else exponent
    k = fma(Fraction(signed), Fraction(1, 1 << 23), Fraction(first))
    f = nearest(single(steps - signed) - 1)
    p = single(words[0])
    for word in words[1:]:
        p = fma(p, f, single(word))
    p = nearest(p * f)
    if function is logf:
        return fma(k, single("3F317218"), fma(p, f, f))
    return nearest(k + fma(f, single("3FB8AA3B"), nearest(p * f)))


def of(function, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return function(numpy_ops(), np.asarray(x, np.float64))


@functions
def test_it_is_the_sequence_of_the_ptx(function):
    """A constant, a boundary of 1 + f, an addition rounded once too often; subnormal numbers
    too.
    """
    words = np.random.default_rng(6).integers(1, 0x7F800000, 1500, dtype=np.uint32)
    words = np.r_[
        words,
        words[:100] >> 8,
        0x3F2AAAAA,
        0x3F2AAAAB,
        0x3F3504F2,
        0x3F3504F3,
        0x3F800000,
        0x007FFFFF,
        0x00800000,
    ].astype(np.uint32)
    got = of(function, words.view(np.float32))
    assert got.tolist() == [float(by_the_ptx(function, int(w))) for w in words]


@functions
def test_under_xla_every_bit_is_the_same(function):
    """A multiply-add that a compiler makes of a product and a sum."""
    words = sampled_words().reshape(512, -1)[:, ::512].reshape(-1)
    with np.errstate(invalid="ignore"):
        x = words.view(np.float32).astype(np.float64)
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(lambda x: function(xla_ops(opaque_zero(x)), x))(x))
    want = of(function, x)
    nan = np.isnan(want)
    assert np.array_equal(nan, np.isnan(got)) and np.array_equal(
        got.view(np.int64)[~nan], want.view(np.int64)[~nan]
    )


@functions
def test_special_numbers(function):
    """NaN of zero, a finite logarithm of an infinity."""
    got = of(function, np.array([0.0, -0.0, INF, NAN, -1.0, -INF, 1.0])).tolist()
    assert list(map(repr, got)) == list(map(repr, [-INF, -INF, INF, NAN, NAN, NAN, 0.0]))
    if function is log2f:
        assert of(log2f, np.exp2(np.arange(-149.0, 128.0))).tolist() == list(range(-149, 128))


@pytest.mark.parametrize(("function", "base"), [(logf, None), (log2f, 2)], ids=["logf", "log2f"])
def test_errors_are_within_one_ulp(function, base):
    """A polynomial of another interval."""
    x = (
        np.exp2(np.random.default_rng(7).uniform(-3.0, 20.0, 1000))
        .astype(np.float32)
        .astype(np.float64)
    )
    with mpmath.workprec(80):
        exact = [
            mpmath.log(mpmath.mpf(v), base) if base else mpmath.log(mpmath.mpf(v))
            for v in x.tolist()
        ]
        ulps = [
            abs(g - w) / np.spacing(np.float32(abs(w)))
            for g, w in zip(of(function, x).tolist(), exact, strict=True)
        ]
    assert max(map(float, ulps)) <= 1.0
