"""The polynomial 2^x of FlashAttention-4: the steps of its PTX on words and in exact fractions, its
bound, both engines.
"""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.instructions.polynomials import poly_ex2

WORDS = (
    "3D9DF09D",
    "3E6906A4",
    "3F31F519",
    "3F800000",
)  # of the PTX that the same code emits for pairs (`e2e_asm2`)
SPECIAL = np.array(
    [
        -np.inf,
        -1e30,
        -127.5,
        -127.0,
        -126.5,
        -126.0,
        -1e-30,
        -(2.0**-26),
        -0.0,
        0.0,
        1e-30,
        0.5,
        1.0,
        126.999,
        127.0,
        127.99999,
    ]
)
ARGUMENTS = np.concatenate(
    [SPECIAL, np.random.default_rng(3).uniform(-128.0, 16.0, 400), np.arange(-126.0, 128.0, 7.0)]
)
ARGUMENTS = ARGUMENTS.astype(np.float32).astype(np.float64)


def nearest(x: Fraction) -> Fraction:
    """x rounded to 24 bits, ties to even; no number here is subnormal but 0."""
    if x == 0:
        return x
    unit = Fraction(2) ** (math.frexp(float(x))[1] - 24)
    return round(x / unit) * unit


def by_the_ptx(x: float) -> float:
    """max, add.rm, sub.rn, sub.rn, three fma.rn, shl and add.s32."""
    clamped = Fraction(max(x, -127.0))
    magic = Fraction(2**23 + 2**22)
    rounded = Fraction(math.floor(clamped + magic))  # numbers between 2^23 and 2^24 are whole ones
    fraction = nearest(clamped - nearest(rounded - magic))
    words = [Fraction(float(np.uint32(int(w, 16)).view(np.float32))) for w in WORDS]
    p = words[0]
    for word in words[1:]:
        p = nearest(p * fraction + word)
    total = (int(np.float32(float(rounded)).view(np.uint32)) << 23) + int(
        np.float32(float(p)).view(np.uint32)
    )
    return float(np.uint32(total & 0xFFFFFFFF).view(np.float32))


def test_it_is_the_ptx():
    """A constant, an order of steps, a floor of a negative number, an exponent below the least."""
    got = poly_ex2(numpy_ops(), ARGUMENTS)
    assert np.array_equal(got, [by_the_ptx(x) for x in ARGUMENTS])


def test_its_error():
    """A polynomial of another degree."""
    x = np.linspace(-126.0, 127.9, 100_001).astype(np.float32).astype(np.float64)
    error = np.abs(poly_ex2(numpy_ops(), x) / np.exp2(x) - 1.0).max()
    assert 2.0**-13.5 < error < 2.0**-13.4


def test_engines_agree():
    """Multiply-adds that XLA makes itself."""
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(lambda x: poly_ex2(xla_ops(opaque_zero(x)), x))(ARGUMENTS))
    assert np.array_equal(got, poly_ex2(numpy_ops(), ARGUMENTS))


@pytest.mark.parametrize(
    ("x", "y"), [(np.nan, np.nan), (128.0, np.inf), (np.inf, np.inf), (-np.inf, 0.0)]
)
def test_special_numbers(x, y):
    """NaN that becomes a number."""
    assert np.array_equal(poly_ex2(numpy_ops(), np.array([x])), [y], equal_nan=True)
